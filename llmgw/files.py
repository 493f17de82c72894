"""A file that is there whole or not at all, whatever happens to the machine."""

import os
from pathlib import Path


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
