"""What a probe answers, and how it reads small files.

Without msgspec: probes also run in children, which are to start in a blink.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast


class Trouble(NamedTuple):
    """A condition somebody should know of."""

    code: str
    what: str
    where: str = ""
    fix: str = ""
    severity: str = "warning"


class Found(NamedTuple):
    """A value and where it is from; *value* None: unknown, and *reason* says why.

    What stands under a key `now` in it changes all the time: it is shown, and does not
    make an inventory a new one. *memory* is given back to the same probe next time.
    """

    value: Any
    source: str
    reason: str = ""
    troubles: tuple[Trouble, ...] = ()
    memory: Any = None


def clean(found: Sequence[Any]) -> Found:
    """What may be sent and shown. Names come from strangers: of files that are no
    UTF-8, which no message can carry, and with what a terminal would obey. *memory*
    is nobody's but the probe's, and stays.
    """
    value, source, reason, troubles, memory = found
    told = tuple(Trouble(*map(_clean, one)) for one in troubles)
    return Found(_clean(value), _clean(source), _clean(reason), told, memory)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else _spelled(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {_clean(key): _clean(one) for key, one in pairs.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in cast("list[Any]", value)]
    return value


def _spelled(value: str) -> str:
    """What is not printable as `\\x1b`, a byte that is no UTF-8 as `\\udc80`."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in value
    )


def text(path: Path) -> str | None:
    """The content of a small file, stripped; None if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace").strip("\n\0 ")
    except OSError:
        # Files under /sys answer with any error that their driver likes.
        return None


def number(path: Path) -> int | None:
    """A whole number, decimal or 0x…; None if there is none."""
    try:
        return int(text(path) or "", 0)
    except ValueError:
        return None


def names(folder: Path) -> list[str]:
    """What is in a folder, in order; nothing if it cannot be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 -- names are what is wanted
    except OSError:
        return []


def target(link: Path) -> str | None:
    """The last part of what a link points to."""
    try:
        return link.readlink().name
    except OSError:
        return None


def fields(content: str | None) -> dict[str, str]:
    """`name: value` lines, the first of each name."""
    found: dict[str, str] = {}
    for line in (content or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def numbers(ranges: str) -> list[int]:
    """`0-3,8` as numbers; what cannot be read is left out."""
    found: list[int] = []
    for part in ranges.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            found += range(start, int(last) + 1 if dash else start + 1)
        except ValueError:
            continue
    return found


def ranges(found: list[int]) -> str:
    """Numbers as `0-3,8`."""
    parts: list[str] = []
    first = last = None
    for one in [*sorted(set(found)), None]:
        if last is not None and one == last + 1:
            last = one
            continue
        if first is not None:
            parts.append(f"{first}" if first == last else f"{first}-{last}")
        first = last = one
    return ",".join(parts)


def pressure(content: str | None) -> dict[str, float] | None:
    """/proc/pressure/…: the share of the last 10 seconds that somebody waited."""
    for line in (content or "").splitlines():
        kind, _, rest = line.partition(" ")
        values = dict(part.split("=", 1) for part in rest.split() if "=" in part)
        if kind == "some" and "avg10" in values:
            return {"some_avg10": float(values["avg10"]) / 100}
    return None


def known(value: dict[str, Any]) -> dict[str, Any]:
    """Without what is None: unknown is left out."""
    return {key: one for key, one in value.items() if one is not None}
