"""What /proc says of a process: who it is, whose it is, what it does.

A number alone is not a process: numbers are used again. The number with its start
time is, for as long as the machine has not rebooted.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


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


def stat(pid: int) -> Stat | None:
    """None: there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
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


def environ(pid: int) -> list[bytes]:
    """The environment it was started with; empty where that may not be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def argv(pid: int) -> tuple[str, ...]:
    """How it was called; empty where that may not be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(raw.decode(errors="replace").split("\0")[:-1])


def cgroup(pid: int | str) -> Path | None:
    """The folder of its cgroup (v2); None where there is none."""
    try:
        mounts = (PROC / "self/mounts").read_text()
        membership = (PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return None
    mount = next(
        (
            Path(fields[1])
            for line in mounts.splitlines()
            if len(fields := line.split()) > 2 and fields[2] == "cgroup2"
        ),
        None,
    )
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
