"""What engines write: files of their own, cut from the front while they grow.

The engine holds the file itself, opened for appending, and knows nothing of us: it
outlives the agent, and a pipe would end with its reader or stop the engine when the
reader is slow. So the file cannot be swapped for a new one, and truncating it after a
copy loses what is written in between. What has been copied is instead taken out of the
front of the file, exactly so much: collapsed where the file system can (ext4, xfs),
else made a hole (tmpfs, btrfs, zfs), whose length stays but takes no room.
"""

import ctypes
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

log = logging.getLogger(__name__)

# What a reason carries: enough to see the fault, little enough for a heartbeat.
LAST_LINES = 5
LAST_BYTES = 2000
# How often sizes are looked at: at 100 MB/s a file exceeds its limit by half as much.
INTERVAL = 0.5
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE = 0x01, 0x02, 0x08
# Collapsing works in whole blocks; no file system we know of has larger ones.
BLOCK = 64 * 1024


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_lines(path: Path, since: int = 0, lines: int = LAST_LINES) -> str:
    """The end of what was written after byte *since*; "" if nothing was."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # Cut since then, it is all of this run.
            file.seek(max(since if since <= end else 0, end - LAST_BYTES))
            text = file.read(LAST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    whole = [line for line in text.splitlines() if line.strip("\0 \t")]
    return "\n".join(whole[-lines:])


def start_of(fd: int) -> int:
    """Where the file's content begins, behind what was made a hole."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole
            return os.lseek(fd, 0, os.SEEK_END)
        return 0


def rotate(path: Path, max_bytes: int, keep: int) -> int:
    """Moves all but the newest of a full log to `path.1`; returns the bytes cut off.

    `path.1` becomes `path.2` and so on; only *keep* of them stay. The writer is not
    disturbed, and each byte is in one file, or in two if we die half-way.
    """
    try:
        # What a hole took out is not counted here; nor is the file opened to see.
        if path.stat().st_blocks * 512 < max_bytes - BLOCK:
            return 0
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return 0
    try:
        begin = start_of(fd)
        end = os.fstat(fd).st_size
        if end - begin < max_bytes:
            return 0
        cut = end - end % BLOCK
        if keep > 0:
            _shift(path, keep)
            _copy(fd, begin, cut, path.with_name(f"{path.name}.1"))
        # Flushed before, there is little to do while the writer is kept out.
        os.fdatasync(fd)
        return _drop_front(fd, path, begin, cut)
    finally:
        os.close(fd)


def _shift(path: Path, keep: int) -> None:
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.rename(path.with_name(f"{path.name}.{number + 1}"))


def _copy(fd: int, begin: int, end: int, to: Path) -> None:
    part = to.with_name(f"{to.name}.part")
    out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        while begin < end:
            sent = os.sendfile(out, fd, begin, end - begin)
            if sent == 0:
                break
            begin += sent
    finally:
        os.close(out)
    part.rename(to)


def _drop_front(fd: int, path: Path, begin: int, cut: int) -> int:
    if begin == 0 and _fallocate(fd, COLLAPSE_RANGE, 0, cut):
        return cut
    if _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, cut):
        return 0
    log.warning("log cut by truncation; lines written just now are lost path=%s", path)
    os.ftruncate(fd, 0)
    return cut


def _fallocate(fd: int, mode: int, offset: int, length: int) -> bool:
    """False where this file system does not do that."""
    off_t = ctypes.c_int64
    return (
        ctypes.CDLL(None, use_errno=True).fallocate(
            fd, mode, off_t(offset), off_t(length)
        )
        == 0
    )


def _cut_off(path: Path, behind: int) -> bytes:
    """Of what was cut off last, what begins *behind* bytes before its end."""
    cut = path.with_name(f"{path.name}.1")
    if not 0 < behind <= size(cut):
        return b""
    with cut.open("rb") as file:
        file.seek(-behind, os.SEEK_END)
        return file.read(BLOCK)


class Logs:
    """Rotates while it runs, and can be read from meanwhile.

    A place in a log is counted from its very first byte, so that cutting does not
    move it.
    """

    def __init__(self, max_bytes: int, keep: int, paths: Callable[[], Iterable[Path]]):
        self._max_bytes = max_bytes
        self._keep = keep
        self._paths = paths
        self._shed: dict[Path, int] = {}
        self._lock = anyio.Lock()

    async def run(self) -> None:
        while True:
            await anyio.sleep(INTERVAL)
            async with self._lock:
                await run_sync(self._rotate_all, list(self._paths()))

    def _rotate_all(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                cut = rotate(path, self._max_bytes, self._keep)
            except OSError as error:
                # A full disk: what can't be kept is dropped, or it stays full.
                log.warning("log not kept path=%s reason=%s", path, error.strerror)
                cut = self._cut(path)
            self._shed[path] = self._shed.get(path, 0) + cut

    def _cut(self, path: Path) -> int:
        try:
            return rotate(path, self._max_bytes, 0)
        except OSError:
            return 0

    async def read(
        self, path: Path, *, lines: int = 100, follow: bool = False
    ) -> AsyncGenerator[bytes]:
        """The last *lines*, then, if asked, all that comes, until it is closed."""
        async with self._lock:
            place, chunk = await run_sync(self._tail, path, lines)
        while True:
            if chunk:
                yield chunk
            if not follow:
                return
            if not chunk:
                await anyio.sleep(INTERVAL / 2)
            async with self._lock:
                place, chunk = await run_sync(self._from, path, place)

    def _tail(self, path: Path, lines: int) -> tuple[int, bytes]:
        shed = self._shed.get(path, 0)
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return shed, b""
        try:
            begin = start_of(fd)
            end = place = os.fstat(fd).st_size
            found = b""
            while place > begin and found.count(b"\n") <= lines:
                step = max(begin, place - BLOCK)
                found = os.pread(fd, place - step, step) + found
                place = step
        finally:
            os.close(fd)
        return shed + end, b"".join(found.splitlines(keepends=True)[-lines:])

    def _from(self, path: Path, place: int) -> tuple[int, bytes]:
        """What stands after *place*, at most a block.

        What has been cut off since is read where it went; who was so slow that it is
        gone from there too goes on with what there is.
        """
        shed = self._shed.get(path, 0)
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return place, b""
        try:
            begin = start_of(fd)
            if chunk := _cut_off(path, behind=shed + begin - place):
                return place + len(chunk), chunk
            offset = max(place - shed, begin)
            chunk = os.pread(fd, BLOCK, offset)
        finally:
            os.close(fd)
        return shed + offset + len(chunk), chunk
