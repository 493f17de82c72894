"""Xid errors: what NVIDIA's driver wrote into the kernel's log, where it is open."""

import errno
import os
import re
from pathlib import Path
from typing import Any

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
# A log that grows faster than it is read must not hold the probe.
_LINES = 100_000


def seen(root: Path) -> list[dict[str, Any]]:
    """By card and number, with how often since boot."""
    counts: dict[tuple[str, int], int] = {}
    for line in _log(root / "dev/kmsg"):
        match = _XID.search(line)
        if match:
            key = (_bus(match[1]), int(match[2]))
            counts[key] = counts.get(key, 0) + 1
    return [
        {"bus": bus, "xid": number, "count": count}
        for (bus, number), count in sorted(counts.items())
    ]


def _bus(said: str) -> str:
    bus = said.lower()
    return bus if "." in bus else f"{bus}.0"


def _log(path: Path) -> list[str]:
    """The lines there are now; none where this user may not read them."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    lines: list[str] = []
    try:
        while len(lines) < _LINES:
            try:
                record = os.read(handle, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: go on
                    continue
                break
            if not record:
                break
            lines += record.decode(errors="replace").splitlines()
    finally:
        os.close(handle)
    return lines
