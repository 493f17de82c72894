"""A configuration as a TOML file that `load` reads as exactly this one."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from llmgw.config.address import masked
from llmgw.config.fields import ROOT, Hints, unwrapped
from llmgw.config.keys import Config
from llmgw.config.toml_value import toml_key, toml_value
from llmgw.config.units import show_duration, show_size


def dump(config: Config) -> str:
    """Every key that has a value, defaults too."""
    values = cast("dict[str, Any]", written(config))
    return "\n".join(_table(values, ())) + "\n"


def without_secrets(config: Config) -> Config:
    """To show, and not to run with: passwords in addresses and variables masked."""
    replace = msgspec.structs.replace
    weights, engines = config.weights, config.engines
    mirrors = tuple(replace(m, url=masked(m.url)) for m in weights.mirrors)
    endpoint = weights.hf_endpoint and masked(weights.hf_endpoint)
    hidden = {
        name: replace(engine, env=dict.fromkeys(engine.env, "***"))
        for name, engine in msgspec.structs.asdict(engines).items()
    }
    return replace(
        config,
        servers=tuple(map(masked, config.servers)),
        weights=replace(weights, mirrors=mirrors, hf_endpoint=endpoint),
        engines=replace(engines, **hidden),
        tracing=replace(
            config.tracing,
            endpoint=config.tracing.endpoint and masked(config.tracing.endpoint),
        ),
    )


def written(value: Any, kind: inspect.Type = ROOT, unit: str = "") -> Any:
    """As in a file: durations and sizes as text, what is not set left out."""
    inner, hints = unwrapped(kind, Hints(unit=unit))
    if isinstance(inner, inspect.StructType):
        found = {
            field.name: written(getattr(value, field.name), field.type)
            for field in inner.fields
        }
        return {name: entry for name, entry in found.items() if entry is not None}
    if isinstance(inner, inspect.VarTupleType) and value is not None:
        return [written(entry, inner.item_type) for entry in value]
    if hints.unit == "duration" and value is not None:
        return show_duration(value)
    if hints.unit == "size" and value is not None:
        return show_size(value)
    return msgspec.to_builtins(value)


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain keys first: what follows a section's head belongs to that section."""
    tables: dict[str, dict[str, Any]] = {
        name: value for name, value in values.items() if isinstance(value, dict)
    }
    for name, value in values.items():
        if name not in tables:
            yield f"{toml_key(name)} = {toml_value(value)}"
    for name, table in tables.items():
        here = (*path, name)
        yield ""
        yield f"[{'.'.join(map(toml_key, here))}]"
        yield from _table(table, here)
