"""What engines write, into files of their own."""

import os
from pathlib import Path

# What a reason carries: enough to see the fault, little enough for a heartbeat.
LAST_LINES = 5
LAST_BYTES = 2000


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_lines(path: Path, since: int = 0, lines: int = LAST_LINES) -> str:
    """The end of what was written after byte *since*; "" if nothing was."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since, end - LAST_BYTES))
            text = file.read(LAST_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
