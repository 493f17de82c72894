"""The JSON schema of the file, from which editors and the NixOS options are made."""

import json
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from llmgw.config.dump import written
from llmgw.config.fields import ROOT, Hints, unwrapped
from llmgw.config.keys import Config
from llmgw.config.units import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    show_duration,
    show_size,
)

Schema = dict[str, Any]

SERVER: Schema = {
    "anyOf": [{"type": "string"}, {"type": "null"}],
    "default": None,
    "description": "One control plane; the same as a list of one, in front of servers.",
    "examples": ["cp1:7443"],
    "x-reload": "live",
}


def json_schema() -> str:
    """As text, the same for the same keys."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"


def schema() -> Schema:
    made = msgspec.json.schema(Config)
    for kind in _structs(ROOT):
        definition = made["$defs"][kind.cls.__name__]
        for field in kind.fields:
            _refine(definition["properties"][field.name], field)
    top = made["$defs"]["Config"]
    # Either will do, which a schema says at length and a person reads in the error.
    top["required"] = []
    top["properties"]["servers"]["default"] = []
    top["properties"]["server"] = SERVER
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llmgw agent configuration",
        **made,
    }


def _structs(kind: inspect.StructType) -> list[inspect.StructType]:
    found = [kind]
    for field in kind.fields:
        inner = unwrapped(field.type)[0]
        if isinstance(inner, inspect.VarTupleType):
            inner = unwrapped(inner.item_type)[0]
        if isinstance(inner, inspect.StructType):
            found += _structs(inner)
    return found


def _refine(said: Schema, field: inspect.Field) -> None:
    """Units as text, limits, and defaults as they are written in a file."""
    inner, hints = unwrapped(field.type)
    if isinstance(inner, inspect.StructType):
        said["default"] = {}
    elif field.default_factory is not NODEFAULT:
        said["default"] = field.default_factory()
    elif field.default is not NODEFAULT:
        said["default"] = written(field.default, field.type)
    # A default that says something is as good an example as any.
    if said.get("default") not in (None, [], {}):
        said.setdefault("examples", [said["default"]])
    for one in said.get("anyOf", [said]):
        if one.get("type") != "null":
            _limit(one, hints)
        if "items" in one and one["items"].get("type") == "integer":
            _limit(one["items"], hints)


def _limit(said: Schema, hints: Hints) -> None:
    low, high = hints.limits.low, hints.limits.high
    if hints.unit in ("duration", "size"):
        is_time = hints.unit == "duration"
        said["type"] = "string"
        said["pattern"] = _anchored(DURATION_PATTERN if is_time else SIZE_PATTERN)
        if low:
            said["x-minimum"] = show_duration(low) if is_time else show_size(int(low))
    elif said.get("type") == "integer":
        said |= {"minimum": int(low)} if low is not None else {}
        said |= {"maximum": int(high)} if high is not None else {}
    elif hints.limits.pattern is not None:
        said["pattern"] = _anchored(hints.limits.pattern)


def _anchored(pattern: str) -> str:
    return f"^({pattern})$"
