"""A file that is there whole or not at all, whatever happens to the machine."""

import errno
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

# CLOCK_REALTIME_COARSE, which `time` does not name: what the kernel stamps files with.
CLOCK_OF_FILES = 5


def replace(path: Path, content: bytes, *, mode: int = 0o640) -> None:
    """Write beside, sync, rename, sync the folder: a power cut leaves old or new.

    OSError if the disk does not take it; what was at *path* is then still there.
    """
    beside = path.with_name(path.name + ".new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(handle, "wb") as file:  # noqa: PTH123 -- a descriptor, not a path
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def read(path: Path, limit: int) -> bytes:
    """What a regular file says. OSError also for a larger one, and for what is none: a
    FIFO, which a person or a broken archive left there, would hold the reader for ever.
    """
    # The file is to own its descriptor: it gives back that of a folder, too.
    with open(path, "rb", opener=_without_waiting) as file:
        known = os.fstat(file.fileno())
        if not stat.S_ISREG(known.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        content = b"" if known.st_size > limit else file.read(limit + 1)
    if max(len(content), known.st_size) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit} bytes", str(path))
    return content


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def remove(path: Path) -> None:
    """Remove it, if it is there, for good."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A new name is on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def left_to_owner(folder: Path) -> Generator[None]:
    """What root makes meanwhile in another user's *folder* is that user's at the end:
    the agent, which is not root, could write nothing beside it.
    """
    since = time.clock_gettime_ns(CLOCK_OF_FILES)
    # The folder itself is made, too, where nobody has worked yet.
    there = next(path for path in (folder, *folder.parents) if _is_seen(path))
    made = folder.relative_to(there).parts[:1]
    try:
        yield
    finally:
        if os.geteuid() == 0:
            # Where root itself may not look, and what was wrong is on its way up.
            with suppress(OSError):
                _leave_to_owner(there, made, since)


def _is_seen(path: Path) -> bool:
    """Also the top, of which nobody needs to ask: some path has to be."""
    try:
        path.stat()
    except OSError:  # a filer may keep it from root, and a user from another
        return path == path.parent
    return True


def _leave_to_owner(there: Path, made: tuple[str, ...], since: int) -> None:
    # It may be a link itself, as to a larger disk, and become another one meanwhile.
    top = os.open(there, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owner = os.fstat(top)
        if owner.st_uid == 0:
            return
        for name in made:
            _leave_one(name, top, owner, since)
        # Follows no link.
        for _, folders, names, handle in os.fwalk(made[0] if made else ".", dir_fd=top):
            for name in (*folders, *names):
                _leave_one(name, handle, owner, since)
    finally:
        os.close(top)


def _leave_one(name: str, folder: int, owner: os.stat_result, since: int) -> None:
    with suppress(OSError):  # it went, or its disk knows no owners
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if found.st_uid != 0 or found.st_ctime_ns < since:
            return
        # A second name of a file may lie where it is nobody else's.
        if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
            os.chown(
                name,
                owner.st_uid,
                owner.st_gid,
                dir_fd=folder,
                follow_symlinks=False,
            )
