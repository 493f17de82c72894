"""Keeps a claim alive while the work is done, and notices when it is lost."""

import logging
import threading

import msgspec

from llmgw.weights.claim import Claim, Claims

log = logging.getLogger(__name__)


class Beating:
    """A thread while the block lasts. *lost*: the claim is another's by now."""

    def __init__(self, claims: Claims, claim: Claim) -> None:
        self._claims = claims
        self.claim = claim
        self.lost = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def update(self, now: tuple[int, int]) -> None:
        """How many bytes of how many; told with the next beat."""
        self.claim = msgspec.structs.replace(self.claim, done=now[0], total=now[1])

    def reserve(self, is_taken: bool) -> None:
        """Tell at once whether the room for all of it is taken."""
        self.claim = msgspec.structs.replace(self.claim, reserved=is_taken)
        self.beat()

    def wait(self, is_waiting: bool) -> None:
        """Tell at once whether it waits for room."""
        if self.claim.waiting != is_waiting:
            self.claim = msgspec.structs.replace(self.claim, waiting=is_waiting)
            self.beat()

    def beat(self) -> None:
        with self._lock:
            self.claim = msgspec.structs.replace(self.claim, beat=self.claim.beat + 1)
            try:
                if not self._claims.beat(self.claim):
                    self.lost.set()
            except OSError as error:
                # A full disk, or a server that is away: the claim stands still. If
                # that lasts another may take it, which costs bytes only.
                log.warning("claim not renewed why=%s", error.strerror)

    def _run(self) -> None:
        while not self._over.wait(self._claims.silence / 10):
            self.beat()
