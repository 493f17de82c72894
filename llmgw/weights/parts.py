"""The folder of unfinished files, and what a process that is gone left for us in it.

    CACHE/.llmgw-fetch/KEY/claim          who fetches
    CACHE/.llmgw-fetch/KEY/NONCE/owner    whose inodes these are
    CACHE/.llmgw-fetch/KEY/NONCE/….part   and its journal

A process writes only below its own nonce.
"""

import errno
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import BinaryIO

import msgspec

from llmgw.weights.blocks import BLOCK
from llmgw.weights.claim import Owner, is_dead

log = logging.getLogger(__name__)

WORK = ".llmgw-fetch"


def key_of(folder: str) -> str:
    return hashlib.sha256(folder.encode()).hexdigest()[:24]


def part_of(parts: Path, name: str) -> Path:
    """A name of its own for the unfinished *name*, which may lie folders deep."""
    return parts / (hashlib.sha256(name.encode()).hexdigest()[:16] + ".part")


def take_over(work: Path, owner: Owner) -> None:
    """Make *owner*'s folder in *work*, with what others left. Hold the claim."""
    mine = work / owner.nonce
    for folder in sorted(work.iterdir()):
        if folder == mine or not folder.is_dir():
            continue
        left_by = _owner_of(folder)
        if left_by is None or not is_dead(left_by):
            _copy(folder, mine)
        elif mine.exists():
            shutil.rmtree(folder)
        else:
            folder.rename(mine)
            log.info("taken over what a dead process left pid=%d", left_by.pid)
    mine.mkdir(exist_ok=True)
    (mine / "owner").write_bytes(msgspec.json.encode(owner))


def _copy(folder: Path, mine: Path) -> None:
    """What another machine has fetched so far, in inodes of our own.

    It went silent, but may only be slow: were its inode ours, it could still write to
    what we have verified. A copy within the file system costs no network.
    """
    for journal in folder.glob("*.part.journal"):
        part = journal.with_suffix("")
        if not part.exists() or (mine / part.name).exists():
            continue
        mine.mkdir(exist_ok=True)
        log.info("copied what another left from=%s", folder)
        try:
            # The journal first: what it says now, the part has.
            shutil.copyfile(journal, mine / journal.name)
            _copy_sparse(part, mine / part.name)
        except FileNotFoundError:
            (mine / journal.name).unlink(missing_ok=True)  # it was finished meanwhile


def _copy_sparse(old: Path, new: Path) -> None:
    """As long as *old*, and with no more on the disk: most of it may be to come.

    Under its name once it is whole and on the disk, and not before: one that was broken
    off is as long, and the journal beside it would be believed. FileNotFoundError if
    *old* is gone, or not what it was.
    """
    beside = new.with_name(new.name + ".copy")
    try:
        with old.open("rb") as source, beside.open("wb") as target:
            _copy_data(source, target)
            target.flush()
            os.fdatasync(target.fileno())
        beside.replace(new)
    finally:
        beside.unlink(missing_ok=True)


def _copy_data(source: BinaryIO, target: BinaryIO) -> None:
    target.truncate(os.fstat(source.fileno()).st_size)
    at = 0
    while (start := _data_after(source.fileno(), at)) is not None:
        at = os.lseek(source.fileno(), start, os.SEEK_HOLE)
        source.seek(start)
        target.seek(start)
        while start < at:
            block = source.read(min(BLOCK, at - start))
            if not block:
                raise FileNotFoundError(errno.ENOENT, "got shorter", source.name)
            target.write(block)
            start += len(block)


def _data_after(handle: int, at: int) -> int | None:
    try:
        return os.lseek(handle, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None  # none is left


def _owner_of(folder: Path) -> Owner | None:
    try:
        return msgspec.json.decode((folder / "owner").read_bytes(), type=Owner)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def sweep(parts: Path) -> None:
    """Leave nothing behind but what a next attempt can go on with."""
    if not any(parts.glob("*.part")):
        shutil.rmtree(parts, ignore_errors=True)


def clear(parts: Path) -> None:
    """Leave nothing behind: others need the room."""
    shutil.rmtree(parts, ignore_errors=True)


def sweep_all(work: Path) -> None:
    """All that is unfinished here: it lies complete now. The claim stays.

    Claims half made are a killed process's. One that lives makes its own anew.
    """
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "claim":
            path.unlink(missing_ok=True)
