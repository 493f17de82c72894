"""One value as TOML writes it."""

from typing import Any, cast

from llmgw.config.report import BARE

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_value(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escaped(char) for char in value) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, cast("list[Any]", value))) + "]"
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        inside = ", ".join(f"{toml_key(name)} = {toml_value(v)}" for name, v in pairs)
        return f"{{ {inside} }}" if inside else "{}"
    return str(value)


def toml_key(name: str) -> str:
    return name if BARE.fullmatch(name) else toml_value(name)


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if ord(char) < 32 or ord(char) == 127:
        return f"\\u{ord(char):04x}"
    return char
