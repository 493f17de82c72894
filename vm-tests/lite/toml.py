"""Writes a value as TOML: the little of it that a configuration file needs."""

import json
from typing import Any, cast


def dumps(table: dict[str, Any]) -> str:
    """One line a key; groups are inline tables. ValueError for a null."""
    return "".join(f"{_pair(name, v)}\n" for name, v in table.items())


def _value(value: Any) -> str:
    if value is None:
        raise ValueError("TOML has no null")
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return "{ " + ", ".join(_pair(name, v) for name, v in table.items()) + " }"
    if isinstance(value, list):
        values = cast("list[Any]", value)
        return "[" + ", ".join(map(_value, values)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _pair(name: str, value: Any) -> str:
    return f"{json.dumps(name)} = {_value(value)}"
