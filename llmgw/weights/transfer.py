"""One file on its way: which pieces are here, which are asked for, what they hash to.

Pieces are taken from the front, several in one go where the link is fast, so that
SHA-256, which must see the bytes in their order, runs right behind the writers:

      hashed        frontier                    taken by threads of the pool
    ────┼──────────────┼────────▒▒▒▒▒▒▒▒│▒▒▒▒▒▒  │▒▒▒▒    │················· size
     verified       whole         piece   piece   piece      not asked for yet

A block that comes in its turn is given to the hash as it is. What came before its
turn is read back when that comes, mostly from memory still.
"""

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from llmgw.errors import WeightsError
from llmgw.weights.blocks import BLOCK, Blocks
from llmgw.weights.faults import Again, Cancelled, Denied
from llmgw.weights.origin import Opened, Origin, Reader
from llmgw.weights.part import PIECE, Part, disk_fault
from llmgw.weights.waiting import PATIENCE, is_too_long, wait_after

log = logging.getLogger(__name__)


# So long a block may take to fill before what is there is written.
MOMENT = 0.03
# One request is for what a connection brings in about so long: the round trip before
# each does not show then, and a slow server is still asked piece by piece.
RUN = 1.0
# Several connections together are asked for so many pieces at once: what comes before
# its turn has to be read back for the hash.
AHEAD = 8
# But for no less than takes so many times as long as its round trip: from far, what has
# to be read back costs less than a link that waits.
WORTH = 9
# So long a block waits for the hash to come to it, unless that is far behind: what is
# hashed as it comes need not be read back. Where the hash is what limits, the waiting
# costs nothing; elsewhere it is never behind.
TURN = 0.2
NEAR = 4 * AHEAD * PIECE
QUEUE = 4
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
        blocks: Blocks,
        hashing: Callable[[int, float], None],
        again: Callable[[str, float], None],
        cancelled: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.origin = origin
        self.part = part
        self.error: Exception | None = None
        self.broke: set[int] = set()
        self.not_before = 0.0
        self._blocks = blocks
        # Hears how many bytes were hashed in how many seconds.
        self._hashing = hashing
        # Hears why something is asked for again, and in how many seconds.
        self._tell_again = again
        self._why = ""
        self._cancelled = cancelled
        self._clock = clock
        self._changed = threading.Condition()
        self._pause = threading.Event()  # never set: time.sleep by another name
        self._todo = deque(n for n, end in enumerate(part.upto) if end < part.length(n))
        self._working = 0
        self._failures = 0
        self._run = 1
        self._least = 1
        self._front = 0
        # What is to be hashed next: blocks in their order, and where those end.
        self._queue: deque[tuple[memoryview, int]] = deque()
        self._turn = 0
        self._is_awaited = False
        self.done = self._had = sum(part.upto)
        self._old = self._frontier()
        self._began = clock()
        self.drag_after = DRAG_AFTER

    # The pool's side ----------------------------------------------------------------

    def take(self, share: int = 1) -> range | None:
        """The next pieces to ask for at once; None if there are none for now.

        Of what is left, one of *share* takes half its share at most: the end of the
        file is not left to one while the others look on.
        """
        with self._changed:
            if self.error or not self._todo or self._clock() < self.not_before:
                return None
            self._working += 1
            most = min(self._run, len(self._todo) // (2 * share))
            if share > 1:
                most = min(most, max(AHEAD // share, self._least))
            first = last = self._todo.popleft()
            while last - first + 1 < most and self._todo[0] == last + 1:
                if self.part.upto[last + 1]:
                    break  # some of it is here
                last = self._todo.popleft()
            return range(first, last + 1)

    def fetch(
        self, pieces: range, reader: Reader, came: Callable[[int], float]
    ) -> None:
        """Bring *pieces* from the origin to the disk, from where they were left.

        *came* hears of each block, and says how long to wait before the next.
        """
        try:
            self._fetch(pieces, reader, came)
        except Again as error:
            self._again(pieces, error)
        except OSError as error:
            self.fail(disk_fault(error, self.part.path))
        except Exception as error:  # noqa: BLE001 -- raised by `wait`, in its owner's thread
            self.fail(error)
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def _fetch(
        self, pieces: range, reader: Reader, came: Callable[[int], float]
    ) -> None:
        start, end = self.part.span(pieces)
        at, begun = start, self._clock()
        block = self._blocks.take()
        try:
            with reader.range(self.origin, start, end) as opened:
                answered = self._clock()
                digest = hashlib.sha256() if opened.sha256 else None
                while at < end:
                    count, fault = _fill(block[: min(len(block), end - at)], opened)
                    self._stop_if_unwanted()
                    self.part.put(at, block[:count])
                    if digest is not None:
                        digest.update(block[:count])
                    elif count:  # nothing is no progress, and no end of the failures
                        block = self._arrived(at, block, count)
                    at += count
                    if fault is not None:
                        raise fault
                    self._pause.wait(came(count))
                    self._stop_if_dragging(at - start, self._clock() - begun)
        finally:
            self._blocks.give(block)
        if digest is None:
            self._plan(at - start, answered - begun, self._clock() - answered)
            return
        # Where every range has a digest, each is one piece: a wrong one costs no more.
        self._run = 1
        if digest.hexdigest() != opened.sha256:
            raise Again("the range does not have the digest that came with it")
        # Only now does it count: the hash of the whole runs right behind.
        with self._changed:
            self._reached(start, at)

    def _plan(self, count: int, waited: float, seconds: float) -> None:
        """How much to ask for next: *count* bytes were waited for, and then came."""
        piece = self.part.begun.piece
        self._run = max(1, int(count / max(waited + seconds, 1e-3) * RUN / piece))
        rate = count / max(seconds, 1e-3)
        self._least = max(1, int(rate * waited * WORTH / piece))

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

    def _arrived(self, at: int, block: memoryview, count: int) -> memoryview:
        """*block* is on the disk from *at* on. The block to go on with."""
        with self._changed:
            # Not while it is at what an earlier attempt left: a block that waits is
            # not in the journal yet, and a kill would cost it.
            is_near = self._old <= self._turn >= at - NEAR
            if is_near and at == self._frontier():
                self._is_awaited = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._is_turn(at), TURN)
                self._is_awaited = False
            is_turn = self._turn == at and not self.error
            spare = self._blocks.take(0.0) if is_turn else None
            self._reached(at, at + count)
            if spare is None:
                return block
            self._queue.append((block, count))
            self._turn += count
            return spare

    def _is_turn(self, at: int) -> bool:
        return bool(self.error) or (self._turn == at and len(self._queue) < QUEUE)

    def _reached(self, start: int, end: int) -> None:
        self.part.reached(start, end)
        self.done += end - start
        self._failures = 0
        self._changed.notify_all()

    def _again(self, pieces: range, error: Again) -> None:
        with self._changed:
            left = [n for n in pieces if self.part.upto[n] < self.part.length(n)]
            self._todo.extendleft(reversed(left))
            self.broke.update(left[:1])
            self._failures += 1
            if self.error:
                return  # that is why, and not what ended here with it
            if self._failures >= PATIENCE or is_too_long(error):
                self.error = error
            else:
                wait = wait_after(self._failures, error.after)
                self.not_before = self._clock() + wait
                self._why = error.what
                self._tell_again(error.what, wait)
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
        own = memoryview(bytearray(BLOCK))
        try:
            while hashed < self.part.begun.size:
                block, count = self._next(hashed, progress)
                began = self._clock()
                if block is None:
                    count = self.part.read(hashed, own[:count])
                    digest.update(own[:count])
                else:
                    digest.update(block[:count])
                    self._blocks.give(block)
                hashed += count
                self._hashing(count, self._clock() - began)
                progress(self.done)
                syncing = self._sync_behind(syncing)
        except Exception as error:
            self.fail(error)
            raise
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

    def _next(
        self, hashed: int, progress: Callable[[int], None]
    ) -> tuple[memoryview | None, int]:
        """What to hash after the first *hashed* bytes: a block, or so many to read."""
        enough = min(hashed + BLOCK, self.part.begun.size)
        while True:
            with self._changed:
                if self._queue:
                    self._changed.notify_all()
                    return self._queue.popleft()
                upto = min(enough, self._frontier())
                # Less than a block, too, if the next waits for the hash to be there:
                # on a slow link each would wait for the other.
                if upto == enough or (self._is_awaited and upto > hashed):
                    self._turn = upto
                    self._changed.notify_all()
                    return None, upto - hashed
                if not self.error:
                    self._changed.wait(0.25)
            if self.error:
                raise self.error
            if self._cancelled():
                self.fail(Cancelled())
            progress(self.done)
            if (wait := self.not_before - self._clock()) > 0:
                self._tell_again(self._why, wait)

    def _frontier(self) -> int:
        """So much is here in one run from the start."""
        upto = self.part.upto
        while self._front < len(upto) - 1 and upto[self._front] == self.part.length(
            self._front
        ):
            self._front += 1
        return self._front * self.part.begun.piece + upto[self._front]

    def _settle(self) -> None:
        with self._changed:
            while self._queue:
                self._blocks.give(self._queue.pop()[0])
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
