"""Plain values to the values of keys.py, key by key.

msgspec stops at the first value it cannot convert, and names it in Python's words.
Checking a file is a loop that somebody sits in, so all of it is told at once.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import UNSET, UnsetType, inspect

from llmgw.config import units
from llmgw.config.address import Complaint, masked, quote
from llmgw.config.checks import ODD, REFUSED
from llmgw.config.describe import Limits
from llmgw.config.examples import as_in
from llmgw.config.fields import ROOT, SERVER, Hints, known_keys, unwrapped
from llmgw.config.nearest import nearest
from llmgw.config.report import Report, dotted
from llmgw.config.toml_places import Path


class Converter:
    """One file's values. What cannot be converted is reported and left out."""

    def __init__(self, report: Report, *, allow_unknown_keys: bool = False) -> None:
        self.report = report
        self.allow_unknown_keys = allow_unknown_keys

    def table(
        self, values: Mapping[str, Any], kind: inspect.StructType, path: Path
    ) -> dict[str, Any]:
        fields = {field.name: field for field in kind.fields}
        if kind is ROOT:
            fields["server"] = SERVER
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name not in fields:
                self._unknown(name, fields, path)
                continue
            field = fields[name]
            # Nothing written after the colon: as if the key were not there.
            is_text = isinstance(unwrapped(field.type)[0], inspect.StrType)
            nothing = value is None or (value == "" and is_text)
            if nothing and not field.required:
                continue
            converted = self.value(value, field.type, (*path, name), Hints())
            if converted is not UNSET:
                found[name] = converted
        if kind is not ROOT:
            self._missing(kind, values, path)
        return found

    def value(self, value: Any, kind: inspect.Type, path: Path, hints: Hints) -> Any:
        """The converted value, or UNSET if it counts as not written or was refused."""
        inner, hints = unwrapped(kind, hints)
        match inner:
            case inspect.StructType():
                return self._struct(value, inner, path)
            case inspect.VarTupleType():
                return self._list(value, inner, path, hints)
            case inspect.DictType():
                return self._dict(value, path, hints)
            case inspect.BoolType():
                if isinstance(value, bool):
                    return value
                return self._wrong(path, value, "true or false")
            case inspect.LiteralType():
                return self._choice(value, inner, path)
            case inspect.StrType():
                return self._text(value, path, hints)
            case _:
                return self._number(value, inner, path, hints)

    def _struct(self, value: Any, kind: inspect.StructType, path: Path) -> Any:
        if not isinstance(value, dict):
            return self._wrong(path, value, "a table of keys")
        before = len(self.report.faults)
        found = self.table(cast("dict[str, Any]", value), kind, path)
        if any(f.required and f.name not in found for f in kind.fields):
            assert len(self.report.faults) > before, "what is missing was reported"
            return UNSET
        return kind.cls(**found)

    def _list(
        self, value: Any, kind: inspect.VarTupleType, path: Path, hints: Hints
    ) -> Any:
        if not isinstance(value, list):
            return self._wrong(path, value, "a list", _as_list(value, kind, path))
        found = [
            self.value(entry, kind.item_type, (*path, number), hints)
            for number, entry in enumerate(cast("list[Any]", value))
        ]
        return tuple(entry for entry in found if entry is not UNSET)

    def _dict(self, value: Any, path: Path, hints: Hints) -> Any:
        if not isinstance(value, dict):
            return self._wrong(path, value, "a table of names and texts")
        found: dict[str, str] = {}
        for name, text in cast("dict[str, Any]", value).items():
            here = (*path, name)
            if not name.strip():
                self.report.fault(here, Complaint("has an empty name", "remove it"))
            elif (complaint := REFUSED[hints.limits.kind or "name"](name)) is not None:
                self.report.fault(here, complaint)
            elif not isinstance(text, str):
                self._wrong(here, text, "text in quotes", _in_quotes(text, path))
            elif (complaint := _unusable(text)) is not None:
                self.report.fault(here, complaint)
            else:
                found[name] = text
        return found

    def _choice(self, value: Any, kind: inspect.LiteralType, path: Path) -> Any:
        if value in kind.values and isinstance(value, str):
            return value
        words = ", ".join(quote(str(word)) for word in kind.values)
        near = difflib.get_close_matches(str(value), [str(v) for v in kind.values], 1)
        fix = f"did you mean {quote(near[0])}?" if near else ""
        return self._wrong(path, value, f"one of {words}", fix)

    def _text(self, value: Any, path: Path, hints: Hints) -> Any:
        if not isinstance(value, str):
            fix = _in_quotes(value, path)
            if _of_text(shown(value), path, hints.limits) is not None:
                fix = ""  # in quotes it would be refused as well
            if path == ("server",) and isinstance(value, list):
                fix = "name it servers, which is a list"
            return self._wrong(path, value, "text in quotes", fix)
        complaint = _unusable(value, judged_later=path[0] in ("server", "servers"))
        if complaint is not None:
            self.report.fault(path, complaint)
            return UNSET
        if hints.limits.kind is None and hints.limits.pattern is None:
            return value
        return self._checked(value, path, hints.limits)

    def _checked(self, value: str, path: Path, limits: Limits) -> Any:
        complaint = _of_text(value, path, limits)
        if complaint is not None:
            self.report.fault(path, complaint)
            return UNSET
        if limits.kind in ODD and (odd := ODD[limits.kind](value)) is not None:
            self.report.warn(path, odd)
        return value

    def _number(
        self, value: Any, kind: inspect.Type, path: Path, hints: Hints
    ) -> float | int | UnsetType:
        if hints.unit in ("duration", "size"):
            return self._measure(value, path, hints)
        assert isinstance(kind, inspect.IntType), "the only plain number in keys.py"
        if not isinstance(value, int) or isinstance(value, bool):
            return self._wrong(path, value, "a whole number")
        low, high = hints.limits.low, hints.limits.high
        if (low is not None and value < low) or (high is not None and value > high):
            top = "" if high is None else f" and at most {high:g}"
            self._wrong(path, value, f"at least {low:g}{top}")
            return UNSET
        return value

    def _measure(self, value: Any, path: Path, hints: Hints) -> float | UnsetType:
        is_time = hints.unit == "duration"
        read, show = (
            (units.duration, units.show_duration)
            if is_time
            else (units.size, units.show_size)
        )
        # Bytes are what a size is counted in; of a duration nobody knows.
        if not is_time and type(value) is int and value >= 0:
            value = f"{value}B"
        if not isinstance(value, str):
            example = "5s" if is_time else "64MiB"
            number = type(value) in (int, float)
            fix = f'write "{value}s" if seconds are meant' if number and is_time else ""
            what = f'a {hints.unit} with its unit, such as "{example}"'
            return self._wrong(path, value, what, fix)
        try:
            number = read(value)
        except ValueError as error:
            complaint = Complaint(f"{quote(value)} {error}", as_in(path))
            self.report.fault(path, complaint)
            return UNSET
        low = hints.limits.low
        if number < 0:
            return self._wrong(path, value, "no less than zero")
        if number == 0 and hints.limits.zero_is_default:
            return UNSET
        if low is not None and number < low:
            bound = show(low) if is_time else show(int(low))  # type: ignore[arg-type]
            return self._wrong(path, value, f"at least {bound}")
        return number

    def _wrong(self, path: Path, value: Any, wanted: str, fix: str = "") -> UnsetType:
        what = f"must be {wanted}, not {shown(value, path)}"
        self.report.fault(path, Complaint(what, fix or as_in(path)))
        return UNSET

    def _missing(
        self, kind: inspect.StructType, values: Mapping[str, Any], path: Path
    ) -> None:
        for field in kind.fields:
            here = (*path, field.name)
            absent = field.required and values.get(field.name) is None
            if absent and dotted(here) not in self.report.meant:
                self.report.fault(here, Complaint("is required", as_in(here)))

    def _unknown(
        self, name: str, fields: Mapping[str, inspect.Field], path: Path
    ) -> None:
        here = (*path, name)
        what, fix, meant = "no such setting", "", ""
        near = nearest(name, fields)
        if near is not None:
            meant = dotted((*path, near))
            fix = f"did you mean {near}?"
        else:
            places = _elsewhere(name)
            if places:
                meant = places[0]
                what = "no such setting here"
                top = "." not in places[0]
                word = "at the top: " if top else "under "
                fix = f"it belongs {word}" + " or ".join(places)
            else:
                fix = _known(fields, path)
        complaint = Complaint(what, fix)
        about_tls = path[:1] == ("tls",) or meant.startswith("tls")
        # A misspelt certificate would leave the door open, so that is never let pass.
        if self.allow_unknown_keys and not about_tls:
            self.report.warn(here, complaint)
        else:
            self.report.meant.add(meant)
            self.report.fault(here, complaint)


def _of_text(value: str, path: Path, limits: Limits) -> Complaint | None:
    if not value.strip():
        return Complaint("is empty", "write a value or remove it")
    if limits.pattern is not None and not re.fullmatch(limits.pattern, value):
        what = f"{quote(value)} is not written as it must be"
        return Complaint(what, as_in(path))
    return None if limits.kind is None else REFUSED[limits.kind](value)


def _as_list(value: Any, kind: inspect.VarTupleType, path: Path) -> str:
    entry = unwrapped(kind.item_type)[0]
    if isinstance(value, dict) and isinstance(entry, inspect.StructType):
        section = re.sub(r"\[\d+\]", "", dotted(path))
        return f"write [[{section}]] for each, not [{section}]"
    if not isinstance(value, str) or _is_secret(path):
        return ""
    return f"write {path[-1]} = [{shown(value, path)}]"


def _in_quotes(value: Any, path: Path) -> str:
    is_one = isinstance(value, (bool, int, float)) and not _is_secret(path)
    return f'write "{shown(value)}"' if is_one else ""


def _known(fields: Mapping[str, inspect.Field], path: Path) -> str:
    """Where no key is near to what was written."""
    if not path:
        return "`llmgw schema --format markdown` lists what there is"
    return f"under {dotted(path)} there are {', '.join(fields)}"


def _elsewhere(name: str) -> list[str]:
    """Where a key of this name, or nearly so, does belong."""
    leaves: dict[str, list[str]] = {}
    for path in known_keys():
        text = ".".join(path).replace(".*", "[]")
        leaves.setdefault(path[-1], []).append(text)
    near = name if name in leaves else nearest(name, leaves)
    return leaves[near][:3] if near else []


def _unusable(text: str, *, judged_later: bool = False) -> Complaint | None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        return Complaint("has half a character in it (a lone surrogate)")
    if "\0" in text and not judged_later:
        return Complaint("has a NUL character in it")
    return None


def _is_secret(path: Path) -> bool:
    """Where tokens are kept that belong in a file of their own."""
    return "env" in path or "args" in path


def shown(value: Any, path: Path = ()) -> str:
    """A refused value, quoted, short, and without what may be a secret."""
    if _is_secret(path):
        return "***"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = quote(masked(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:197] + "..."
