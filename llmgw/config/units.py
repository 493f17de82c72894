"""Durations as Go writes them and sizes, to and from base units."""

import re
from fractions import Fraction

# Nanoseconds. Both micro signs: U+00B5 and the Greek letter.
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_MOST = 2**63 - 1  # what Go holds: 292 years
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]+)")

_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?([KMGTP]?)(i?)B", re.ASCII)

# Of the whole text, in POSIX extended syntax, so that Nix can use them as well.
DURATION_PATTERN = r"\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)"
SIZE_PATTERN = r"[0-9]+(\.[0-9]+)?([KMGTP]i?)?B"


def duration(text: str) -> float:
    """Seconds. ValueError says what is wrong with the text."""
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0.0
    total = _nanoseconds(text, rest)
    if total > _MOST + negative:
        raise ValueError("is longer than 292 years")
    # Whole nanoseconds divided once: the nearest float, whatever the spelling.
    return (-total if negative else total) / 10**9


def _nanoseconds(text: str, rest: str) -> int:
    if not rest or text != text.strip():
        raise ValueError('is not a duration such as "5s" or "1m30s"')
    total = 0
    while rest:
        match = _PART.match(rest)
        if match is None:
            if re.fullmatch(r"[0-9.]*[0-9][0-9.]*", rest):
                raise ValueError('has no unit; write "5s", "1m30s" or "500ms"')
            raise ValueError('is not a duration such as "5s" or "1m30s"')
        whole, fraction, unit = match.groups()
        if not whole and not fraction:
            raise ValueError('is not a duration such as "5s" or "1m30s"')
        if unit not in _UNITS and unit.strip() in _UNITS:
            raise ValueError('has a space in it; write "5s" or "1m30s"')
        if unit not in _UNITS:
            raise ValueError(
                f'has the unknown unit "{unit.strip()}"; known are h, m, s, ms, us, ns'
            )
        if len(whole) > 20:
            raise ValueError("is longer than 292 years")
        scale = _UNITS[unit]
        total += int(whole or 0) * scale
        # More digits than a nanosecond has are cut off, as Go does.
        part = (fraction or "")[:18]
        total += int(part or 0) * scale // 10 ** len(part)
        rest = rest[match.end() :]
    return total


def show_duration(seconds: float) -> str:
    """The shortest text that `duration` reads as exactly this number."""
    nanoseconds = min(round(Fraction(seconds) * 10**9), _MOST)
    if nanoseconds < 0:
        return "-" + show_duration(-seconds)
    if nanoseconds < 10**9:
        for unit, scale in (("ms", 10**6), ("us", 10**3), ("ns", 1)):
            if nanoseconds >= scale and nanoseconds % scale == 0:
                return f"{nanoseconds // scale}{unit}"
        if nanoseconds == 0:
            return "0s"
        return f"{nanoseconds}ns"
    text = ""
    for unit in ("h", "m"):
        count, nanoseconds = divmod(nanoseconds, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    whole, rest = divmod(nanoseconds, 10**9)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{whole}{fraction}s" if whole or rest else text


def size(text: str) -> int:
    """Bytes. ValueError says what is wrong with the text."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[4] and not match[3]):
        if re.fullmatch(r"[0-9]+", text, re.ASCII):
            raise ValueError('has no unit; write "64MiB", "8GB" or "512B"')
        raise ValueError('is not a size such as "64MiB" or "8GB"')
    whole, fraction, prefix, binary = match.groups()
    power = "KMGTP".index(prefix) + 1 if prefix else 0
    scale = (1024 if binary else 1000) ** power
    if len(whole) > 20:
        raise ValueError("is larger than a file system can be")
    part = (fraction or "")[:18]
    total = int(whole) * scale + int(part or 0) * scale // 10 ** len(part)
    if total > _MOST:
        raise ValueError("is larger than a file system can be")
    return total


def show_size(count: int) -> str:
    """The shortest text that `size` reads as exactly this number."""
    for base, mark in ((1024, "iB"), (1000, "B")):
        for power, prefix in reversed(list(enumerate("KMGTP", 1))):
            scale = base**power
            if count >= scale and count % scale == 0:
                return f"{count // scale}{prefix}{mark}"
    return f"{count}B"
