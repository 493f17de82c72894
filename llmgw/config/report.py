"""What is found wrong in a file, in the order in which it is told."""

import re
from collections.abc import Mapping

from llmgw.config.address import Complaint, quote
from llmgw.config.toml_places import Path
from llmgw.errors import Fault

BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)

# The order of the original's own checks: its first fault is told first.
TLS, SERVERS, NODE_ID, REST = range(4)


def dotted(path: Path) -> str:
    """A path as an operator writes it: `fabrics[0].hcas[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif BARE.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += ("." if text else "") + quote(part)
    return text


class Report:
    """Collects; a fault is not raised where it is found, for there may be others."""

    def __init__(self, file: str, lines: Mapping[Path, int]) -> None:
        self.file = file
        self.lines = lines
        self._faults: list[tuple[int, int, Fault]] = []
        self._warnings: list[Fault] = []
        # Keys that a misspelt one most likely stands for: whoever misses them keeps
        # silent, for the message would go away with the typo.
        self.meant: set[str] = set()

    def line(self, path: Path) -> int | None:
        """Where it stands, or else where that stands which holds it."""
        while path:
            if path in self.lines:
                return self.lines[path] or None
            path = path[:-1]
        return None

    def fault(self, path: Path, complaint: Complaint, rank: int = REST) -> None:
        fault = self._made(path, complaint)
        # The original judges `server` before `servers`, whichever stands first.
        line = (fault.line or 0) if rank == REST else 0
        self._faults.append((rank, line, fault))

    def warn(self, path: Path, complaint: Complaint) -> None:
        self._warnings.append(self._made(path, complaint))

    def _made(self, path: Path, complaint: Complaint) -> Fault:
        return Fault(
            file=self.file,
            line=self.line(path),
            key=dotted(path),
            what=complaint.what,
            fix=complaint.fix,
        )

    @property
    def faults(self) -> tuple[Fault, ...]:
        ordered = sorted(self._faults, key=lambda found: found[:2])
        return tuple(fault for _, _, fault in ordered)

    @property
    def warnings(self) -> tuple[Fault, ...]:
        return tuple(self._warnings)
