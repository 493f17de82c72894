"""What the cgroups that this process is in allow it."""

from pathlib import Path
from typing import NamedTuple

from llmgw.discovery.found import number, text

# v1 says "no limit" as the largest number of pages.
_ENDLESS = 1 << 62


class Limits(NamedTuple):
    """None: not limited. *cpus* is how many can work at a time, *memory* in bytes."""

    cpus: float | None = None
    memory: int | None = None


def limits(root: Path) -> Limits:
    """The tightest limit on the way from our cgroup to the top."""
    cpus: list[float] = []
    memory: list[int] = []
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        held = controllers.split(",")
        for folder in _up(_mount(root, controllers), path):
            if not controllers:
                cpus += _cpu_max(text(folder / "cpu.max"))
                memory += _memory(number(folder / "memory.max"))
            elif "cpu" in held:
                cpus += _quota(folder)
            elif "memory" in held:
                memory += _memory(number(folder / "memory.limit_in_bytes"))
    return Limits(min(cpus, default=None), min(memory, default=None))


def _mount(root: Path, controllers: str) -> Path:
    top = root / "sys/fs/cgroup"
    if not controllers:
        return top / "unified" if (top / "unified").is_dir() else top
    return top / controllers


def _up(mount: Path, path: str) -> list[Path]:
    """From our cgroup up. Inside a container the path may be that of the outside."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _cpu_max(content: str | None) -> list[float]:
    quota, _, period = (content or "").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return [int(quota) / int(period)]
    return []


def _quota(folder: Path) -> list[float]:
    quota = number(folder / "cpu.cfs_quota_us")
    period = number(folder / "cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 else []


def _memory(limit: int | None) -> list[int]:
    return [limit] if limit is not None and 0 < limit < _ENDLESS else []
