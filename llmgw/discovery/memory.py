"""Memory: the machine's, and how much of it the cgroup leaves us."""

from pathlib import Path
from typing import Any

from llmgw.discovery import cgroup
from llmgw.discovery.found import Found, fields, known, names, number, pressure, text


def survey(root: Path = Path("/")) -> Found:
    source = "/proc/meminfo, cgroup"
    info = fields(text(root / "proc/meminfo"))
    total = size(info, "MemTotal")
    if total is None:
        return Found(None, source, "/proc/meminfo does not say MemTotal")
    limit = cgroup.limits(root).memory
    if limit is not None and limit >= total:
        limit = None
    value = {
        "total": total,
        "limit": limit,
        "usable": total if limit is None else limit,
        "swap": size(info, "SwapTotal"),
        "huge_pages": _huge_pages(root),
        "transparent_huge_pages": _chosen(
            text(root / "sys/kernel/mm/transparent_hugepage/enabled")
        ),
        "now": known(
            {
                "available": size(info, "MemAvailable"),
                "swap_free": size(info, "SwapFree"),
                "pressure": pressure(text(root / "proc/pressure/memory")),
            }
        ),
    }
    return Found(known(value), source)


def size(info: dict[str, str], name: str) -> int | None:
    """Bytes; /proc/meminfo counts in KiB and calls them kB."""
    words = info.get(name, "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _huge_pages(root: Path) -> list[dict[str, Any]] | None:
    top = root / "sys/kernel/mm/hugepages"
    found: list[dict[str, Any]] = []
    for name in names(top):
        kib = name.removeprefix("hugepages-").removesuffix("kB")
        count = number(top / name / "nr_hugepages")
        if kib.isdigit() and count:
            found.append({"size": int(kib) * 1024, "total": count})
    return found or None


def _chosen(content: str | None) -> str | None:
    """`always [madvise] never`: the one in brackets."""
    words = [word for word in (content or "").split() if word.startswith("[")]
    return words[0].strip("[]") if words else None
