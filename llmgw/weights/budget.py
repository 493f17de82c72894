"""How fast bytes may come, over all files and connections together."""

import threading
import time
from collections.abc import Callable


class Budget:
    """A bucket that fills at *rate* bytes a second and holds a tenth of a second."""

    def __init__(
        self, rate: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, count: int) -> float:
        """Account for *count* bytes; the seconds to wait before the next are taken."""
        if self.rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            # Time that nobody used is not saved up: a link that is shared would see
            # a burst after every pause.
            self._free_at = max(self._free_at, now - 0.1) + count / self.rate
            return max(0.0, self._free_at - now)
