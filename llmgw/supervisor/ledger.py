"""Which processes are ours: what an agent must know of the engines it did not start.

One file per replica, written and flushed before the engine may run its first
instruction, so that there is never an engine without its line. The line is proof only
together with the process: same number, same start time, same boot. What is not proved
is never signalled.

A line that cannot be read costs no engine either: each carries the ledger's own tag
and its replica's id in its environment, and is found by them. Of a line that another
version wrote, what is understood is enough, if it tells the process and the digest.
"""

import contextlib
import errno
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from llmgw import files
from llmgw.errors import EngineError
from llmgw.salvage import understood
from llmgw.supervisor import procfs
from llmgw.supervisor.launch import Health, Launch
from llmgw.wire import UNDECODABLE

VERSION = 1
LARGEST_PID = 1 << 22  # proc_sys_kernel(5), pid_max
LARGEST = 64 * 1024 * 1024
TAG = "LLMGW_LEDGER"
REPLICA = "LLMGW_REPLICA"
COPY = ".json.copy"


class Identity(Struct, frozen=True, kw_only=True):
    """Which process. *invocation*: systemd's name for one start of a unit."""

    pid: Annotated[int, Meta(ge=0, le=LARGEST_PID)]
    started: Annotated[int, Meta(ge=0)]
    boot: str
    invocation: str | None = None

    @classmethod
    def of(cls, pid: int, invocation: str | None = None) -> "Identity | None":
        """Of the process that has this number now; None if none lives."""
        stat = procfs.stat(pid)
        if stat is None or not stat.is_alive:
            return None
        return cls(
            pid=pid, started=stat.started, boot=procfs.boot_id(), invocation=invocation
        )


class Entry(Struct, frozen=True, kw_only=True):
    """*stopping*: it is to go; an agent that finds it so finishes the stop.

    *is_whole*: false once a part of it was not understood: the engine may be kept by
    such a line, and none may be started by its *launch*.
    """

    version: int = VERSION
    machine: str
    id: str
    generation: int
    digest: str
    identity: Identity
    launch: Launch
    backend: str = "process"
    cgroup: str | None = None
    was_ready: bool = False
    stopping: bool = False
    restarts: int = 0
    stop_after: Annotated[float, Meta(ge=0)] | None = None
    is_whole: bool = True


# What was executed, where the line does not say so.
NOT_KNOWN = {"launch": Launch(argv=("?",)), "launch.argv": ("?",)}


class Unreadable(NamedTuple):
    """A file of the ledger that says nothing usable, and why."""

    path: Path
    id: str
    reason: str


class Lines(NamedTuple):
    """*partly*: by path, what was not understood of those that are among *entries*."""

    entries: list[Entry]
    unreadable: list[Unreadable]
    partly: dict[Path, list[str]]


def machine() -> str:
    """This machine, without giving its id away: a disk may be copied to another."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with contextlib.suppress(OSError):
            return hashlib.sha256(b"llmgw ledger " + path.read_bytes()).hexdigest()
    return ""


def write_whole(path: Path, content: bytes, *, flushed: bool = True) -> None:
    """Replaces the file, or leaves it as it was; on the disk when it returns, unless it
    need not be *flushed*.

    OSError if it could not: no half is left behind.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        # One that lies there may be a FIFO, which would hold the writer for ever.
        part.unlink(missing_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if flushed:
                os.fsync(fd)
        finally:
            os.close(fd)
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if flushed:
        _flush(path.parent)


# Not the file that is at fault but what it is on.
UNWRITABLE = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota of the agent's user",
    errno.EROFS: "mount it writable, or name another folder as state_dir",
}


def unwritable(error: OSError, path: Path) -> EngineError:
    """Of *path*, which is the state_dir or below it: nothing is started meanwhile."""
    free = ""
    if error.errno in UNWRITABLE:
        free = f"; {_room(path)}"
    return EngineError(
        f"state_dir cannot be written: {error.strerror}{free}; no engine is started "
        "that could not be found again",
        where=str(path),
        fix=UNWRITABLE.get(
            error.errno or 0, "make state_dir writable for the agent's user"
        ),
    )


def _room(path: Path) -> str:
    """Which file system that is, and what is left of it."""
    while not path.exists():
        path = path.parent
    there = path.resolve()
    while not there.is_mount():
        there = there.parent
    numbers = os.statvfs(there)
    free = numbers.f_bavail * numbers.f_frsize // 1_000_000
    size = numbers.f_blocks * numbers.f_frsize // 1_000_000
    return f"{free} of {size} MB are free on {there}, {numbers.f_favail} more files"


def _flush(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Ledger:
    """The files. Every method touches the disk: call them in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "ledger"
        self._tag_file = state_dir / "ledger-tag"
        self.tag = ""
        self.machine = ""

    def open(self) -> None:
        """Makes the folder and the tag; EngineError if the state can't be written."""
        self.machine = machine()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tag = ""
            with contextlib.suppress(FileNotFoundError):
                tag = files.read(self._tag_file, 4096).decode(errors="replace").strip()
            if not re.fullmatch("[0-9a-f]+", tag):
                # None yet, or damaged: engines that have a line are ours without it.
                tag = secrets.token_hex(16)
                write_whole(self._tag_file, tag.encode())
            # Only what is on the disk: by a tag that was lost no engine is found again.
            self.tag = tag
        except OSError as error:
            path = Path(str(error.filename or self.folder.parent))
            raise unwritable(error, path) from error

    def read(self) -> Lines:
        """What it says, and what of it could not be used."""
        lines = Lines([], [], {})
        for path in sorted(self.folder.glob("*.json")):
            try:
                entry, missed = self._read(path, path.stem)
            except (OSError, ValueError, *UNDECODABLE) as error:
                why = getattr(error, "strerror", None) or str(error)
                lines.unreadable.append(Unreadable(path, path.stem, why))
                continue
            lines.entries.append(entry)
            if missed:
                lines.partly[path] = missed
        return lines

    def _read(self, path: Path, id: str) -> tuple[Entry, list[str]]:
        line = msgspec.json.decode(files.read(path, LARGEST), type=dict[str, Any])
        if line.get("machine") != self.machine:
            raise ValueError("was written on another machine")
        entry, missed = understood(line, Entry, NOT_KNOWN)
        entry = _fitting(entry, missed)
        if entry.id != id:
            raise ValueError(f"speaks of {entry.id}")
        if entry.version != VERSION:
            missed.insert(0, f"version {entry.version}")
        if missed:
            entry = replace(entry, version=VERSION, is_whole=False)
        return entry, missed

    def write(self, entry: Entry) -> None:
        """On the disk when it returns; EngineError if not."""
        path = self.folder / f"{entry.id}.json"
        content = msgspec.json.encode(entry)
        try:
            write_whole(path, content)
        except OSError as error:
            raise unwritable(error, path) from error
        self._copy(entry.id, content)

    def _copy(self, id: str, content: bytes) -> None:
        """Beside the line. Not flushed: after a power cut it would prove nothing."""
        path = self.folder / f".{id}{COPY}"
        with contextlib.suppress(OSError):
            # It is not so any more, and the disk may have no room for what is.
            path.unlink(missing_ok=True)
            write_whole(path, content, flushed=False)

    def copies(self, known: Container[str]) -> list[Entry]:
        """What the lines of all others than *known* said when they were written."""
        found: list[Entry] = []
        for path in sorted(self.folder.glob(f".*{COPY}")):
            id = path.name[1 : -len(COPY)]
            if id not in known:
                with contextlib.suppress(OSError, ValueError, *UNDECODABLE):
                    found.append(self._read(path, id)[0])
        return found

    def restore(self, as_written: Iterable[Entry], mended: Iterable[Entry]) -> None:
        """A line for each that was *mended*, and a copy where a line has none, or one
        of an engine before it: a version that wrote no copies let it lie.
        """
        for entry in mended:
            with contextlib.suppress(EngineError):
                self.write(entry)
        for entry in as_written:
            with contextlib.suppress(OSError):
                line = files.read(self.folder / f"{entry.id}.json", LARGEST)
                copy = self._copied(entry.id)
                # What a damaged line lacks its copy may have.
                if copy is None or (entry.is_whole and copy != line):
                    self._copy(entry.id, line)

    def _copied(self, id: str) -> bytes | None:
        with contextlib.suppress(OSError):
            return files.read(self.folder / f".{id}{COPY}", LARGEST)
        return None

    def forget(self, id: str) -> None:
        """Nothing of this replica runs. A line that stays names a dead process."""
        with contextlib.suppress(OSError):
            (self.folder / f".{id}{COPY}").unlink(missing_ok=True)
            (self.folder / f"{id}.json").unlink(missing_ok=True)
            _flush(self.folder)

    def set_aside(self, unreadable: Unreadable) -> None:
        """Kept for a person to look at, under a name that is not read again."""
        with contextlib.suppress(OSError):
            unreadable.path.rename(unreadable.path.with_suffix(".unreadable"))

    def tags(self, id: str) -> dict[str, str]:
        """What marks every process of this replica, its grandchildren too."""
        if not self.tag:  # the disk was full or read-only when we started
            self.open()
        return {TAG: self.tag, REPLICA: id}


def _fitting(entry: Entry, missed: list[str]) -> Entry:
    """Without what it can't be asked or ended by, whatever each value is alone.

    A folder is only swept if it was an engine's: that of another name holds others.
    """
    launch = entry.launch
    if launch.health and not _can_be_asked(launch, launch.health):
        missed.append("launch.health")
        entry = replace(entry, launch=replace(launch, health=None))
    name = Path(entry.cgroup).name if entry.cgroup else None
    if name not in (None, f"engine-{entry.id}", f"llmgw-engine@{entry.id}.service"):
        missed.append("cgroup")
        entry = replace(entry, cgroup=None)
    return entry


def _can_be_asked(launch: Launch, health: Health) -> bool:
    try:
        ipaddress.ip_address(launch.host)
    except ValueError:
        return False
    return health.port in launch.ports


def is_proved(entry: Entry) -> bool:
    """Whether the process named there is still the one that was started."""
    now = Identity.of(entry.identity.pid)
    return (
        now is not None
        and now.started == entry.identity.started
        and now.boot == entry.identity.boot
    )


def replica(tag: str, pid: int) -> str | None:
    """Which one's a process is, by this ledger's tag; None: it does not bear it."""
    env = procfs.environ(pid)
    if f"{TAG}={tag}".encode() not in env:
        return None
    name = f"{REPLICA}=".encode()
    named = (part for part in env if part.startswith(name))
    return next((part[len(name) :].decode(errors="replace") for part in named), None)


def is_anothers(tag: str, id: str, pid: int) -> bool:
    """Whether it was started for another replica than this one, by whatever agent."""
    env = procfs.environ(pid)
    bears = any(part.startswith(f"{TAG}=".encode()) for part in env)
    return bears and not {f"{TAG}={tag}", f"{REPLICA}={id}"} <= {
        part.decode(errors="replace") for part in env
    }


def tagged(tag: str) -> dict[str, list[procfs.Stat]]:
    """Every living process that bears this ledger's tag, by replica."""
    found: dict[str, list[procfs.Stat]] = {}
    for stat in procfs.everyone():
        if stat.is_alive and (id := replica(tag, stat.pid)):
            found.setdefault(id, []).append(stat)
    return found
