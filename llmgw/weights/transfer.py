"""One file on its way: which pieces are here, which are asked for, what they hash to.

Pieces are taken from the front, so that SHA-256, which must see the bytes in their
order, runs right behind the writers and what it reads is still in memory:

      hashed        frontier                    taken by threads of the pool
    ────┼──────────────┼────────▒▒▒▒▒▒▒▒│▒▒▒▒▒▒  │▒▒▒▒    │················· size
     verified       whole         piece   piece   piece      not asked for yet
"""

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from llmgw.errors import WeightsError
from llmgw.weights.budget import Budget
from llmgw.weights.faults import Again, Cancelled, Denied
from llmgw.weights.origin import Opened, Origin, Reader
from llmgw.weights.part import BLOCK, Part, disk_fault
from llmgw.weights.waiting import PATIENCE, is_too_long, wait_after

log = logging.getLogger(__name__)


# So long a block may take to fill before what is there is written.
MOMENT = 0.03
# A connection this many times slower than the mean of all, for so long, is given up.
DRAG = 10
DRAG_AFTER = 15.0


class Transfer:
    """What the pool's threads work on. Any thread may call what is public."""

    def __init__(
        self,
        origin: Origin,
        part: Part,
        *,
        cancelled: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origin = origin
        self.part = part
        self.error: Exception | None = None
        self.broke: set[int] = set()
        self.not_before = 0.0
        self._cancelled = cancelled
        self._clock = clock
        self._changed = threading.Condition()
        self._pause = threading.Event()  # never set: time.sleep by another name
        self._todo = deque(n for n, end in enumerate(part.upto) if end < part.length(n))
        self._working = 0
        self._failures = 0
        self._front = 0
        self.done = self._had = sum(part.upto)
        self._began = clock()
        self.drag_after = DRAG_AFTER

    # The pool's side ----------------------------------------------------------------

    def take(self) -> int | None:
        """The next piece to fetch; None if there is none for now."""
        with self._changed:
            if self.error or not self._todo or self._clock() < self.not_before:
                return None
            self._working += 1
            return self._todo.popleft()

    def fetch(
        self, piece: int, reader: Reader, block: memoryview, budget: Budget
    ) -> None:
        """Bring *piece* from the origin to the disk, from where it was left."""
        try:
            self._fetch(piece, reader, block, budget)
        except Again as error:
            self._again(piece, error)
        except OSError as error:
            self.fail(disk_fault(error, self.part.path))
        except Exception as error:  # noqa: BLE001 -- raised by `wait`, in its owner's thread
            self.fail(error)
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _fetch(
        self, piece: int, reader: Reader, block: memoryview, budget: Budget
    ) -> None:
        start = piece * self.part.begun.piece
        at, end = start + self.part.upto[piece], start + self.part.length(piece)
        first, begun = at, self._clock()
        with reader.range(self.origin, at, end) as opened:
            digest = hashlib.sha256() if opened.sha256 else None
            while at < end:
                count, fault = _fill(block[: min(len(block), end - at)], opened)
                self._stop_if_unwanted()
                self.part.put(at, block[:count])
                at += count
                if digest is None:
                    self._arrived(piece, at - start)
                else:
                    digest.update(block[:count])
                if fault is not None:
                    raise fault
                self._pause.wait(budget.take(count))
                self._stop_if_dragging(at - first, self._clock() - begun)
        if digest is not None:
            # Only now does it count: the hash of the whole runs right behind.
            if digest.hexdigest() != opened.sha256:
                raise Again("the range does not have the digest that came with it")
            self._arrived(piece, at - start)

    def _stop_if_unwanted(self) -> None:
        if self._cancelled():
            raise Cancelled
        if self.error:
            raise Again("given up elsewhere")

    def _stop_if_dragging(self, count: int, seconds: float) -> None:
        """Give up a connection that is far behind the others: a new one is as they are.

        A path through a sick link, or one worker of a server that swaps, would hold
        up the end of the file by hours, and is never quite silent.
        """
        if seconds < self.drag_after or not self._working:
            return
        mean = (self.done - self._had) / (self._clock() - self._began) / self._working
        if count / seconds < mean / DRAG:
            raise Again("far slower than the other connections")

    def _arrived(self, piece: int, upto: int) -> None:
        before = self.part.upto[piece]
        self.part.reached(piece, upto)
        with self._changed:
            self.done += upto - before
            self._failures = 0
            self._changed.notify_all()

    def _again(self, piece: int, error: Again) -> None:
        with self._changed:
            self._todo.appendleft(piece)
            self.broke.add(piece)
            self._failures += 1
            if self._failures >= PATIENCE or is_too_long(error):
                self.error = self.error or error
            else:
                wait = wait_after(self._failures, error.after)
                self.not_before = self._clock() + wait
            log.info("range broke, asked again url=%s why=%s", self.origin, error.what)

    def fail(self, error: Exception) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    # The owner's side ---------------------------------------------------------------

    def wait(self, progress: Callable[[int], None]) -> str:
        """Hash behind the writers until all is here and on disk; the SHA-256.

        Raises what any of the threads raised, once none of them works here any more.
        """
        digest, hashed, syncing = hashlib.sha256(), 0, None
        block = memoryview(bytearray(BLOCK))
        size = self.part.begun.size
        try:
            while hashed < size:
                frontier = self._frontier_past(hashed, progress)
                while hashed < frontier:
                    view = block[: min(BLOCK, frontier - hashed)]
                    count = self.part.read(hashed, view)
                    digest.update(view[:count])
                    hashed += count
                progress(self.done)
                syncing = self._sync_behind(syncing)
        finally:
            self._settle()
            if syncing is not None:
                syncing.join()
        self.part.sync()
        return digest.hexdigest()

    def _sync_behind(self, before: threading.Thread | None) -> threading.Thread | None:
        """Have what was written brought to the disk meanwhile, one sync at a time.

        Left to the end it would all be waited for then; and after a power cut it
        would all be gone.
        """
        if not self.part.is_due or (before is not None and before.is_alive()):
            return before
        thread = threading.Thread(target=self._sync, name="sync", daemon=True)
        thread.start()
        return thread

    def _sync(self) -> None:
        try:
            self.part.sync()
        except OSError as error:
            self.fail(disk_fault(error, self.part.path))

    def _frontier_past(self, hashed: int, progress: Callable[[int], None]) -> int:
        """Wait for a block more than *hashed* in one run from the start."""
        begun = self.part.begun
        enough = min(hashed + BLOCK, begun.size)
        while True:
            with self._changed:
                while self._front < len(self.part.upto) and self.part.upto[
                    self._front
                ] == self.part.length(self._front):
                    self._front += 1
                frontier = self._front * begun.piece
                if self._front < len(self.part.upto):
                    frontier += self.part.upto[self._front]
                frontier = min(frontier, begun.size)
                if frontier >= enough:
                    return frontier
                if not self.error:
                    self._changed.wait(0.25)
            if self.error:
                raise self.error
            if self._cancelled():
                self.fail(Cancelled())
            progress(self.done)

    def _settle(self) -> None:
        with self._changed:
            while self._working:
                self._changed.wait()


def _fill(view: memoryview, opened: Opened) -> tuple[int, Again | None]:
    """Read until *view* is full, for a moment at most; how much came, and what broke.

    A write, a line in the journal and a word to the hash for each of the kernel's
    helpings of 64 KiB took two thirds of the time.
    """
    count, until = 0, time.monotonic() + MOMENT
    while count < len(view) and time.monotonic() < until:
        try:
            came = opened.read_into(view[count:])
        except Again as error:
            return count, error
        if not came:
            return count, Again("the answer ended early")
        count += came
    return count, None


def refusal(error: Exception, where: str) -> WeightsError:
    """What is told to whoever asked."""
    match error:
        case WeightsError():
            return error
        case Again(what=what):
            return WeightsError(what, where=where, final=False)
        case Denied(what=what, fix=fix):
            return WeightsError(what, where=where, fix=fix)
        case _:
            raise error
