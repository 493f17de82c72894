"""Machines as their /proc and /sys show them, each a text file that a test unpacks.

`== PATH` begins a file, `-> ` a link. Every one says in its first lines whether it was
read from a machine or written from public descriptions (synthetic).
"""

from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.txt"))


def origin(name: str) -> str:
    """`read` from a machine, or `synthetic`: the first word of its first line."""
    return (HERE / f"{name}.txt").read_text().split()[1].rstrip(":")


def unpack(name: str, root: Path) -> Path:
    """The machine under *root*."""
    path: Path | None = None
    lines: list[str] = []
    for line in [*(HERE / f"{name}.txt").read_text().splitlines(), "== "]:
        if not line.startswith("== "):
            lines.append(line)
            continue
        if path is not None:
            _write(path, lines)
        path, lines = root / line[3:], []
    return root


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if lines and lines[0].startswith("-> "):
        path.symlink_to(lines[0][3:])
    else:
        path.write_text("\n".join(lines) + "\n")
