"""One cgroup per engine, below the agent's own: its limits, its end, its OOM fate."""

import contextlib
import os
import re
from pathlib import Path

from llmgw.errors import EngineError
from llmgw.supervisor import procfs
from llmgw.supervisor.launch import Limits

AGENT = "agent"
WANTED = ("memory", "cpu", "cpuset", "pids")


class Cgroup:
    """One engine's. A folder; what is in it is never a matter of opinion."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def at(cls, path: str) -> "Cgroup | None":
        """None if there is none."""
        found = Path(path)
        return cls(found) if (found / "cgroup.procs").exists() else None

    def pids(self) -> list[int]:
        """Everyone in it and below it."""
        found: list[int] = []
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError, ValueError):
                text = (Path(folder) / "cgroup.procs").read_text()
                found += [int(pid) for pid in text.split()]
        return found

    def join(self, pid: int) -> None:
        """Moves it here; see `Tree.prepare_to_move` for how long that takes."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def kill(self) -> bool:
        """SIGKILL to all at once, however fast they fork; False before Linux 5.14."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def ooms(self) -> int | None:
        """How many of it the kernel has killed for memory; None: it does not say."""
        return self._events("memory.events").get("oom_kill")

    def pressure(self) -> float | None:
        """The part of the last ten seconds that some of it waited for memory.

        In tenths: each change is told to the control plane. None: it is not counted.
        """
        try:
            text = (self.path / "memory.pressure").read_text()
        except OSError:  # no controller, or a kernel that was told not to (psi=0)
            return None
        some = re.search(r"^some avg10=([0-9.]+)", text, re.MULTILINE)
        return round(float(some[1]) / 100, 1) if some else None

    def _events(self, name: str) -> dict[str, int]:
        try:
            lines = (self.path / name).read_text().splitlines()
        except OSError:
            return {}
        return {key: int(value) for key, _, value in (x.partition(" ") for x in lines)}

    def remove(self) -> None:
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


class Tree:
    """The part of the hierarchy that was delegated to the agent."""

    def __init__(self, root: Path, controllers: frozenset[str]) -> None:
        self._root = root
        self.controllers = controllers

    def describe(self) -> str:
        names = [name for name in WANTED if name in self.controllers]
        return " ".join(names) or "no controllers: nothing is limited"

    def prepare_to_move(self) -> None:
        """Makes the next `join` quick, for as long as the kernel is awake to it.

        The first move in a while waits for all CPUs to have taken note, 6 to 16 ms; the
        next takes 0.1. The agent moves to where it is, so that an engine need not wait.
        """
        with contextlib.suppress(OSError):  # then the first move is the slow one
            (self._root / AGENT / "cgroup.procs").write_text("0")

    def at(self, id: str) -> Cgroup:
        """That replica's, which need not be there."""
        return Cgroup(self._root / f"engine-{id}")

    def make(self, id: str, limits: Limits) -> Cgroup:
        """A new one, with its limits set; EngineError if one cannot be kept."""
        cgroup = self.at(id)
        # One that an engine left, as it ended while no agent ran, has that one's limits
        # still, and may be frozen.
        cgroup.remove()
        if pids := cgroup.pids():
            raise EngineError(
                f"holds processes already, which no line of the ledger names: {pids}",
                where=str(cgroup.path),
                fix="end them, or move them out of it; the replica is tried again",
            )
        try:
            cgroup.path.mkdir(exist_ok=True)
            self._limit(cgroup.path, limits)
        except OSError as error:
            cgroup.remove()
            raise EngineError(
                f"cannot be made or limited: {error.strerror}", where=str(cgroup.path)
            ) from error
        return cgroup

    def _limit(self, path: Path, limits: Limits) -> None:
        if limits.memory is not None and "memory" in self.controllers:
            (path / "memory.max").write_text(str(limits.memory))
        if "memory" in self.controllers:
            # Half an engine is no engine: without this the kernel takes one worker
            # and the rest waits for it for ever, its GPU held.
            (path / "memory.oom.group").write_text("1")
        if limits.cpus is not None and "cpu" in self.controllers:
            (path / "cpu.max").write_text(f"{int(limits.cpus * 100_000)} 100000")
        if limits.cpuset and "cpuset" in self.controllers:
            cpus = ",".join(str(cpu) for cpu in limits.cpuset)
            (path / "cpuset.cpus").write_text(cpus)


def delegated() -> Tree | None:
    """The agent's own tree, ready for engines; None where it was not delegated.

    A cgroup with children may hold no process itself, so the agent moves down first.
    The top of the hierarchy is not anybody's to divide and is left alone.
    """
    path = procfs.cgroup("self")
    if path is None:
        return None
    if path.name == AGENT:  # moved already, or systemd did (DelegateSubgroup=agent)
        path = path.parent
    if not (path / "cgroup.type").exists() or not _is_delegated(path):
        return None
    return divide(path)


def _is_delegated(path: Path) -> bool:
    """systemd marks what it gives away; elsewhere, what we may write is ours."""
    with contextlib.suppress(OSError):
        if os.getxattr(path, "user.delegate") == b"1":
            return True
    with contextlib.suppress(OSError):
        if os.getxattr(path, "trusted.delegate") == b"1":
            return True
    return os.geteuid() != 0 and os.access(path, os.W_OK)


def divide(path: Path) -> Tree | None:
    """Makes *path* ready to have engines below it; None if it is not ours to divide."""
    try:
        agent = path / AGENT
        agent.mkdir(exist_ok=True)
        for pid in (path / "cgroup.procs").read_text().split():
            (agent / "cgroup.procs").write_text(pid)
    except OSError:
        return None
    available = (path / "cgroup.controllers").read_text().split()
    for name in WANTED:
        if name in available:
            with contextlib.suppress(OSError):
                (path / "cgroup.subtree_control").write_text(f"+{name}")
    enabled = (path / "cgroup.subtree_control").read_text().split()
    return Tree(path, frozenset(enabled))
