"""What can be understood of a file that another version of llmgw wrote, or a bad disk.

After a downgrade what was kept has values that are not known here. To refuse it whole
would end a working engine, or undo what a person said, for one word.
"""

import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)


def understood(
    value: Mapping[str, Any], shape: type[T], instead: Mapping[str, Any]
) -> tuple[T, list[str]]:
    """As much of *value* as is a *shape*, and the names of what was not understood.

    For that its default stands, or what *instead* says of its name. ValueError if
    neither is there.
    """
    missed: list[str] = []
    return _Reading(instead, missed).whole(value, shape, ""), missed


class _Reading:
    def __init__(self, instead: Mapping[str, Any], missed: list[str]) -> None:
        self._instead = instead
        self._missed = missed

    def whole(self, value: Mapping[str, Any], shape: type[T], where: str) -> T:
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(shape):
            name = f"{where}{field.name}"
            if field.name not in value and not field.required:
                continue
            try:
                found[field.name] = self._part(value.get(field.name), field.type, name)
            except msgspec.ValidationError as error:
                if name in self._instead:
                    found[field.name] = self._instead[name]
                elif field.required:
                    raise msgspec.ValidationError(f"{name}: {error}") from error
                self._missed.append(name)
        return shape(**found)

    def _part(self, value: object, kind: Any, name: str) -> object:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            shape = next(filter(_is_struct, (kind, *typing.get_args(kind))), None)
            if shape is None or not isinstance(value, dict):
                raise
            known = typing.cast("dict[str, Any]", value)
            return self.whole(known, shape, f"{name}.")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)
