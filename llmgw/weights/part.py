"""The unfinished file on its way to being whole, and what of it can be believed."""

import errno
import os
import threading
from pathlib import Path

from llmgw.errors import WeightsError
from llmgw.weights.journal import Begun, Journal, read

# Small enough that the hash is never far behind, large enough that the round trip
# before each piece does not show.
PIECE = 8 * 1024 * 1024
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

    def span(self, pieces: range) -> tuple[int, int]:
        """Where what is still to come of these pieces begins and ends."""
        start, last = pieces[0] * self.begun.piece, pieces[-1]
        return (
            start + self.upto[pieces[0]],
            last * self.begun.piece + self.length(last),
        )

    def put(self, at: int, view: memoryview) -> None:
        """Write; it counts once `reached` says so."""
        done = 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], at + done)

    def reached(self, start: int, end: int) -> None:
        """The bytes from *start* to *end* are written, and right."""
        with self._lock:
            self._unsynced += end - start
            while start < end:
                piece = start // self.begun.piece
                first = piece * self.begun.piece
                start = min(end, first + self.begun.piece)
                self.upto[piece] = start - first
                self._journal.wrote(piece, start - first)

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
        # Without the lock, which every connection waits for: this syncs, too, and is
        # one line at the end of a file.
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


def disk_fault(error: OSError, path: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WeightsError(
            f"no space left while writing: {error.strerror}",
            where=str(path.parent),
            fix="free space, or raise the quota: `llmgw weights list`",
        )
    return WeightsError(f"cannot be written: {error.strerror}", where=str(path))
