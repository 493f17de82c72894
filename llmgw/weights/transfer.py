"""One file on its way: which pieces are here, which are asked for, what they hash to.

Pieces are taken from the front, so that SHA-256, which must see the bytes in their
order, runs right behind the writers and what it reads is still in memory:

      hashed        frontier                    taken by threads of the pool
    ────┼──────────────┼────────▒▒▒▒▒▒▒▒│▒▒▒▒▒▒  │▒▒▒▒    │················· size
     verified       whole         piece   piece   piece      not asked for yet
"""

import errno
import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from llmgw.errors import WeightsError
from llmgw.weights.budget import Budget
from llmgw.weights.faults import Again, Cancelled, Denied
from llmgw.weights.journal import Begun, Journal, read
from llmgw.weights.origin import Origin, Reader
from llmgw.weights.waiting import PATIENCE, is_too_long, wait_after

log = logging.getLogger(__name__)

# Small enough that the hash is never far behind, large enough that the round trip
# before each piece does not show.
PIECE = 8 * 1024 * 1024
BLOCK = 1024 * 1024
SYNC_EVERY = 256 * 1024 * 1024


class Part:
    """The unfinished file and its journal. Nobody else writes to this inode, ever."""

    def __init__(self, path: Path, begun: Begun) -> None:
        self.path = path
        self.begun = begun
        count = max(1, -(-begun.size // begun.piece))
        self.upto = [0] * count
        self.resumed = self._believe()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        os.ftruncate(self._file, begun.size)
        os.fsync(self._file)
        self._journal = Journal(_beside(path), begun, self.upto)
        self._lock = threading.Lock()
        self._unsynced = 0

    def _believe(self) -> int:
        """Take over what an earlier attempt at the same file left; its bytes."""
        found = read(_beside(self.path), self.begun.boot)
        if found is None or not self.path.exists():
            return 0
        begun, upto = found
        same = (begun.size, begun.piece) == (self.begun.size, self.begun.piece)
        # With a digest the end will tell. Without one only the same validator says
        # that the bytes which are here and those to come belong together.
        if self.begun.sha256 is not None:
            same = same and begun.sha256 == self.begun.sha256
        else:
            same = same and begun.validator == self.begun.validator is not None
        if not same or self.path.stat().st_size != begun.size:
            return 0
        for piece, end in upto.items():
            if piece < len(self.upto):
                self.upto[piece] = min(end, self.length(piece))
        return sum(self.upto)

    def length(self, piece: int) -> int:
        start = piece * self.begun.piece
        return min(self.begun.piece, self.begun.size - start)

    def write(self, piece: int, view: memoryview) -> None:
        at = piece * self.begun.piece + self.upto[piece]
        done = 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], at + done)
        with self._lock:
            self.upto[piece] += done
            self._unsynced += done
            self._journal.wrote(piece, self.upto[piece])

    def forget(self, piece: int) -> None:
        with self._lock:
            self.upto[piece] = 0

    def read(self, at: int, view: memoryview) -> int:
        return os.preadv(self._file, [view], at)

    @property
    def is_due(self) -> bool:
        return self._unsynced >= SYNC_EVERY

    def sync(self) -> None:
        """Bring everything written so far to the disk, and say so in the journal."""
        with self._lock:
            lines, self._unsynced = self._journal.written, 0
        os.fdatasync(self._file)
        with self._lock:
            self._journal.synced(lines)

    def close(self) -> None:
        self._journal.close()
        os.close(self._file)


def discard(path: Path) -> None:
    """Remove a part and its journal: nothing of it is of use."""
    path.unlink(missing_ok=True)
    _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


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
        self.not_before = 0.0
        self._cancelled = cancelled
        self._clock = clock
        self._changed = threading.Condition()
        self._pause = threading.Event()  # never set: time.sleep by another name
        self._todo = deque(n for n, end in enumerate(part.upto) if end < part.length(n))
        self._working = 0
        self._failures = 0
        self._front = 0
        self.done = sum(part.upto)

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
        start, length = piece * self.part.begun.piece, self.part.length(piece)
        at, end = start + self.part.upto[piece], start + length
        with reader.range(self.origin, at, end) as read_into:
            while at < end:
                count = read_into(block[: min(len(block), end - at)])
                if not count:
                    raise Again(f"the answer ended {end - at} bytes early")
                self._stop_if_unwanted()
                self.part.write(piece, block[:count])
                at += count
                self._arrived(count)
                wait = budget.take(count)
                if wait:
                    self._pause.wait(wait)

    def _stop_if_unwanted(self) -> None:
        if self._cancelled():
            raise Cancelled
        if self.error:
            raise Again("given up elsewhere")

    def _arrived(self, count: int) -> None:
        with self._changed:
            self.done += count
            self._failures = 0
            self._changed.notify_all()

    def _again(self, piece: int, error: Again) -> None:
        with self._changed:
            self._todo.appendleft(piece)
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
        while hashed < size:
            frontier = self._frontier_past(hashed, progress)
            while hashed < frontier:
                count = self.part.read(hashed, block[: min(BLOCK, frontier - hashed)])
                digest.update(block[:count])
                hashed += count
            progress(self.done)
            syncing = self._sync_behind(syncing)
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
                self._settle()
                raise self.error
            if self._cancelled():
                self.fail(Cancelled())
            progress(self.done)

    def _settle(self) -> None:
        with self._changed:
            while self._working:
                self._changed.wait()


def disk_fault(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WeightsError(
            f"no space left while writing: {error.strerror}",
            where=str(path.parent),
            fix="free space, or raise the quota: `llmgw weights list`",
        )
    return WeightsError(f"cannot be written: {error.strerror}", where=str(path))


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
