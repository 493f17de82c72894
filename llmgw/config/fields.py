"""The keys of keys.py as msgspec tells them: names, types, limits."""

from typing import Any, cast

from msgspec import Struct, inspect

from llmgw.config.describe import Limits
from llmgw.config.keys import Config

ROOT = cast("inspect.StructType", inspect.type_info(Config))
# The old spelling of a list of one; folded into `servers`, no other module sees it.
SERVER = inspect.Field("server", "server", inspect.StrType(), required=False)


class Hints(Struct, frozen=True):
    """What a type says beside itself: its unit, and the limits of its key."""

    limits: Limits = Limits()
    unit: str = ""
    live: bool = False


def unwrapped(
    kind: inspect.Type, hints: Hints | None = None
) -> tuple[inspect.Type, Hints]:
    """The type behind `Annotated` and `| None`, and what was said on the way."""
    hints = hints or Hints()
    while True:
        if isinstance(kind, inspect.Metadata):
            schema = cast("dict[str, Any]", kind.extra_json_schema or {})
            extra = cast("dict[str, Any]", kind.extra or {})
            limits = extra.get("limits", hints.limits)
            unit = schema.get("x-nix-type", hints.unit)
            hints = Hints(limits, unit, extra.get("live", hints.live))
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            kind = next(t for t in kind.types if not isinstance(t, inspect.NoneType))
        else:
            return kind, hints


def known_keys(
    kind: inspect.StructType = ROOT, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], inspect.Field]:
    """Every key of the file by its path; `*` stands for the entry of a list."""
    found: dict[tuple[str, ...], inspect.Field] = {}
    for field in kind.fields:
        here = (*path, field.name)
        found[here] = field
        inner = unwrapped(field.type)[0]
        if isinstance(inner, inspect.VarTupleType):
            inner, here = unwrapped(inner.item_type)[0], (*here, "*")
        if isinstance(inner, inspect.StructType):
            found |= known_keys(inner, here)
    return found
