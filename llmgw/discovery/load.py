"""How busy the machine is, for every heartbeat."""

from pathlib import Path
from typing import NamedTuple

from llmgw.discovery.found import fields, text
from llmgw.discovery.memory import size


class Sample(NamedTuple):
    """*busy* of *total* are ticks since boot; None: unknown."""

    busy: int | None = None
    total: int | None = None
    memory_used: int | None = None


def sample(root: Path = Path("/")) -> Sample:
    info = fields(text(root / "proc/meminfo"))
    total, available = size(info, "MemTotal"), size(info, "MemAvailable")
    used = None if total is None or available is None else total - available
    first = (text(root / "proc/stat") or "").partition("\n")[0].split()
    if len(first) < 6 or first[0] != "cpu":
        return Sample(memory_used=used)
    # user nice system idle iowait irq softirq steal; what guests use is in user.
    ticks = [int(word) for word in first[1:9]]
    return Sample(sum(ticks) - ticks[3] - ticks[4], sum(ticks), used)


def share(earlier: Sample, later: Sample) -> float | None:
    """The fraction of all CPUs that worked between two samples."""
    if None in (earlier.busy, earlier.total, later.busy, later.total):
        return None
    assert earlier.busy is not None
    assert earlier.total is not None
    assert later.busy is not None
    assert later.total is not None
    passed = later.total - earlier.total
    return min(1.0, max(0.0, (later.busy - earlier.busy) / passed)) if passed else None
