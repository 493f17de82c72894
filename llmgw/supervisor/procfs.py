"""What /proc says of a process: who it is, whose it is, what it does.

A number alone is not a process: numbers are used again. The number with its start
time is, for as long as the machine has not rebooted.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

# Seconds. A program that comes from a slow disk may take part of one to be begun.
EXEC_LIMIT = 0.5
# Never set. time.sleep is until an instant, which is an error where a preloaded library
# turns the clock: nobody's agent is to end of that.
pause = threading.Event()


class Stat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    started: int

    @property
    def is_alive(self) -> bool:
        """A zombie is not, though kill(pid, 0) says that it is there."""
        return self.state not in "ZXx"


def boot_id() -> str:
    """Another one after every boot: start times of different boots do not compare."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _read(path: str) -> bytes:
    """A third of the time of `Path.read_bytes`, and a crash has to wait for it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 65536)
        while part := os.read(fd, 65536):
            text += part
    finally:
        os.close(fd)
    return text


def stat(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name stands in brackets and may itself hold brackets and spaces.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])
    )


def everyone() -> Iterator[Stat]:
    """Every process there is, zombies too."""
    for name in os.listdir(PROC):  # noqa: PTH208 -- half the time of Path.iterdir
        if name.isdigit() and (found := stat(int(name))):
            yield found


def descendants(root: int, is_wanted: Callable[[Stat], bool]) -> list[Stat] | None:
    """All below *root*, dead ones too; what is not wanted is not looked under either.

    None where the kernel keeps no lists of children (CONFIG_PROC_CHILDREN).
    """
    while True:
        found: list[Stat] = []
        below = seen = children(root)
        if below is None or seen is None:
            return None
        while below:
            stats = [known for child in below if (known := stat(child))]
            wanted = [known for known in stats if is_wanted(known)]
            found += wanted
            below = [pid for one in wanted for pid in children(one.pid) or ()]
        # One that ended meanwhile has left us what it had started.
        if set(children(root) or ()) <= set(seen):
            return found


def children(pid: int) -> list[int] | None:
    """Of all its threads: a child is its own thread's, another's once that one ends."""
    tasks = f"/proc/{pid}/task"
    while True:
        try:
            threads = os.listdir(tasks)  # noqa: PTH208 -- half the time of Path.iterdir
        except OSError:
            return None
        try:
            lists = [_read(f"{tasks}/{thread}/children") for thread in threads]
        except FileNotFoundError:
            if not os.access(f"{tasks}/{pid}/children", os.F_OK):
                return None
            continue  # a thread ended; whose its children are now is read anew
        except OSError:
            return None
        return [int(child) for each in lists for child in each.split()]


def environ(pid: int) -> list[bytes]:
    """The environment it was started with; empty where that may not be read.

    While it turns into another program it shows none, and is waited for: a worker that
    is just being started would otherwise be nobody's. Blocks, at most EXEC_LIMIT.
    """
    end = time.monotonic() + EXEC_LIMIT
    while True:
        try:
            content = _read(f"/proc/{pid}/environ")
        except OSError:
            return []
        if content or not _may_have_one(pid) or time.monotonic() > end:
            return content.split(b"\0")
        pause.wait(0.0005)  # in a thread, as all that reads /proc


def _may_have_one(pid: int) -> bool:
    """Whether a process that showed no environment may show one yet.

    Not if it has no memory, as a dead one and a thread of the kernel, and not if its
    environment is known to be empty: it begins where it ends (proc_pid_stat(5)). While
    the kernel still lays it out it does so too; where the code begins is told later.
    """
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return False
    fields = text[text.rindex(b")") + 2 :].split()
    memory, code = int(fields[20]), int(fields[23])
    begin, end = int(fields[47]), int(fields[48])
    return memory > 0 and not (code > 0 and 0 < begin == end)


def argv(pid: int) -> tuple[str, ...]:
    """How it was called; empty where that may not be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(raw.decode(errors="replace").split("\0")[:-1])


def cgroup_mount() -> Path | None:
    """Where the one hierarchy (v2) is seen; None: this machine has only the old ones.

    The last one counts: it hides those below.
    """
    lines = (PROC / "self/mounts").read_text(errors="surrogateescape").splitlines()
    mounts = [line.split()[1] for line in lines if line.split()[2] == "cgroup2"]
    return Path(mounts[-1]) if mounts else None


def cgroup(pid: int | str) -> Path | None:
    """The folder of its cgroup (v2); None where there is none."""
    mount = cgroup_mount()
    try:
        membership = (PROC / str(pid) / "cgroup").read_text(errors="surrogateescape")
    except OSError:
        return None
    inside = next(
        (line[3:] for line in membership.splitlines() if line.startswith("0::")), None
    )
    if mount is None or inside is None:
        return None
    return mount / inside.lstrip("/")


def effort(pid: int) -> tuple[int, int]:
    """Bytes it has read so far, and MiB it holds: both grow while weights load."""
    read = resident = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(pid) / "io").read_text().splitlines():
            if line.startswith("rchar:"):
                read = int(line.split()[1])
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return read, resident


def open_below(root: Path) -> set[str]:
    """Files below *root* that a process of this machine has open or mapped.

    Of another user's processes nothing is to be learned.
    """
    inside = os.fsencode(root) + b"/"
    found: set[bytes] = set()
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            mapped = _read(f"{process}/maps").split(b"\n")
            found.update(b"/" + line.partition(b" /")[2] for line in mapped)
            found.update(_opened(process))
    return {os.fsdecode(path) for path in found if path.startswith(inside)}


def _opened(process: Path) -> Iterator[bytes]:
    for handle in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed since: the others are not
            yield os.fsencode(handle.readlink())
