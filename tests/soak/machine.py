"""What a soak does with a machine: little memory, a clock that jumps, and a look."""

import ctypes
import os
import select
import subprocess
import time
from pathlib import Path

GIVEN = 24 << 20


class Memory:
    """A cgroup of little memory, of whichever hierarchy has the controller."""

    def __init__(self) -> None:
        self.path: Path | None = None
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, where, kind, options, *_ = line.split()
            if kind == "cgroup" and "memory" in options.split(","):
                self._make(Path(where), "memory.limit_in_bytes", "memory.oom_control")
            elif kind == "cgroup2" and "memory" in _words(where, "subtree_control"):
                self._make(Path(where), "memory.max", "memory.events")

    def _make(self, mount: Path, limit: str, events: str) -> None:
        path = mount / f"llmgw-soak-{os.urandom(4).hex()}"
        try:
            path.mkdir()
            (path / limit).write_text(str(GIVEN))
        except OSError:
            return
        self.path, self._events = path, path / events

    def take(self, pid: int) -> None:
        assert self.path
        (self.path / "cgroup.procs").write_text(str(pid))

    def killed(self) -> int:
        """How many of it the kernel has killed."""
        words = self._events.read_text().split()
        return int(words[words.index("oom_kill") + 1])

    def remove(self) -> None:
        if self.path:
            self.path.rmdir()


def _words(mount: str, name: str) -> list[str]:
    try:
        return (Path(mount) / f"cgroup.{name}").read_text().split()
    except OSError:
        return []


class Writes:
    """Says when the agent makes, renames or removes one of its files."""

    CREATE, MOVED_TO, DELETE, CLOSE_WRITE = 0x100, 0x80, 0x200, 0x8

    def __init__(self, folders: list[Path]) -> None:
        libc = ctypes.CDLL(None)
        self.fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = self.CREATE | self.MOVED_TO | self.DELETE | self.CLOSE_WRITE
        for folder in folders:
            libc.inotify_add_watch(self.fd, os.fsencode(folder), mask)  # absent: none

    def wait(self, events: int, within: float) -> bool:
        """Until so many have been seen."""
        end = time.monotonic() + within
        while events > 0:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                return False
            events -= len(os.read(self.fd, 4096)) // 32  # 16 and a short name
        return True

    def close(self) -> None:
        os.close(self.fd)


def signalled(stranger: subprocess.Popen[bytes]) -> str:
    """What somebody did to it; "" if nobody did anything."""
    if stranger.poll() is not None:
        return f"ended with {stranger.returncode}"
    status = Path(f"/proc/{stranger.pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    pending = int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)
    if pending or fields["State"].startswith("T"):
        return f"signals pending {pending:#x}, {fields['State']}"
    return ""


def faketime() -> str:
    """The library that gives a process a clock of its own; "" where there is none."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else ""
