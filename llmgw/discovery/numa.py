"""NUMA nodes: which CPUs and how much memory are near each other."""

from pathlib import Path

from llmgw.discovery.found import Found, fields, names, text
from llmgw.discovery.memory import size


def survey(root: Path = Path("/")) -> Found:
    top = root / "sys/devices/system/node"
    found = [
        {
            "id": int(name[4:]),
            "cpus": text(top / name / "cpulist") or "",
            "memory": _memory(text(top / name / "meminfo")),
            "distances": [
                int(word) for word in (text(top / name / "distance") or "").split()
            ],
        }
        for name in sorted(names(top), key=lambda name: (len(name), name))
        if name.startswith("node") and name[4:].isdigit()
    ]
    source = "/sys/devices/system/node"
    if not found:
        return Found(None, source, "the kernel names no NUMA nodes")
    return Found(found, source)


def _memory(content: str | None) -> int | None:
    """Its lines start with `Node 0`."""
    lines = [line.split(None, 2)[-1] for line in (content or "").splitlines()]
    return size(fields("\n".join(lines)), "MemTotal")
