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
        # All that ever came, limited or not.
        self.taken = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, count: int) -> float:
        """Account for *count* bytes; the seconds to wait before the next are taken."""
        with self._lock:
            self.taken += count
            if self.rate is None:
                return 0.0
            now = self._clock()
            # Time that nobody used is not saved up: a link that is shared would see
            # a burst after every pause.
            self._free_at = max(self._free_at, now - 0.1) + count / self.rate
            return max(0.0, self._free_at - now)


class Quiet:
    """The part of the day in which nothing is fetched, `22:00-06:00` say.

    The one place where the wall clock decides something here: people mean theirs.
    """

    def __init__(
        self, hours: str, *, clock: Callable[[], time.struct_time] = time.localtime
    ) -> None:
        self._hours = hours
        first, _, last = hours.partition("-")
        self._first, self._last = _minutes(first), _minutes(last)
        self._clock = clock

    def holds(self) -> bool:
        now = self._clock()
        minute = now.tm_hour * 60 + now.tm_min
        if self._first <= self._last:
            return self._first <= minute < self._last
        return minute >= self._first or minute < self._last

    def __str__(self) -> str:
        return f"the quiet hours {self._hours}"


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)
