"""TOML, YAML and JSON to plain values, with the line of each."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, cast

import yaml
from msgspec import Struct, field

from llmgw.config import toml_places
from llmgw.config.slips import KEEP_ONE, fix_of, of_toml
from llmgw.config.toml_places import Path

_INTEGER = re.compile(r"[-+]?[0-9]{1,40}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_TAGS = {"str", "int", "float", "bool", "null", "seq", "map"}
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Document(Struct, frozen=True):
    """What a file holds, and on which line each key of it stands (0: not known)."""

    values: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict[Path, int])


class Malformed(ValueError):
    """The text is not what its extension says."""

    def __init__(self, what: str, line: int | None = None, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.fix = fix


def read_toml(text: str) -> Document:
    text = text.replace("\r\n", "\n")  # as tomllib does, whose columns are counted
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error
    except ValueError as error:
        slip = of_toml(_plain(str(error)), text, _offset(str(error), text))
        what = f"is not TOML: {slip.what}"
        raise Malformed(what, slip.line, slip.fix) from error
    return Document(values, toml_places.places(text))


def _offset(said: str, text: str) -> int | None:
    """Where tomllib stood: it counts lines and columns from 1."""
    if "(at end of document)" in said:
        return len(text)
    found = re.search(r"\(at line ([0-9]+), column ([0-9]+)\)", said)
    if found is None:
        return None
    before = text.split("\n")[: int(found[1]) - 1]
    return sum(map(len, before)) + len(before) + int(found[2]) - 1


def read_yaml(text: str) -> Document:
    reader = _Nodes()
    values = _from_nodes(text, reader, "YAML")
    return Document(_table(values, "YAML"), reader.lines)


def read_json(text: str) -> Document:
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in found:
            if name in values:
                twice.append(name)
            values[name] = value
        return values

    values = _from_json(text, pairs)
    reader = _Nodes()
    try:
        # For the lines only. Tabs stop PyYAML; in JSON they are never part of a value.
        _from_nodes(text.replace("\t", " "), reader, "JSON")
    except Malformed as error:
        if "twice" in error.what:
            raise
        reader.lines = dict.fromkeys(_paths(values, ()), 0)
    if twice:
        raise Malformed(f'has the key "{twice[0]}" twice', fix=KEEP_ONE)
    return Document(_table(values, "JSON"), reader.lines)


def _paths(values: Any, path: Path) -> Iterator[Path]:
    if isinstance(values, dict):
        for name, value in cast("dict[str, Any]", values).items():
            yield (*path, name)
            yield from _paths(value, (*path, name))
    elif isinstance(values, list):
        for number, value in enumerate(cast("list[Any]", values)):
            yield (*path, number)
            yield from _paths(value, (*path, number))


def _from_json(text: str, pairs: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    def constant(word: str) -> Any:
        raise Malformed(f"is not JSON: {word} is no number")

    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        what = _plain(error.msg)
        raise _malformed("JSON", what, error.lineno) from error
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error
    except Malformed:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise Malformed(f"is not JSON: {_plain(str(error))}") from error


def _malformed(language: str, what: str, line: int | None) -> Malformed:
    return Malformed(f"is not {language}: {what}", line, fix_of(what, language))


def _table(values: Any, language: str) -> dict[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise Malformed(f"holds no keys: the top of a {language} file must be a table")
    return cast("dict[str, Any]", values)


def _plain(what: str) -> str:
    """A library's message as the second half of ours."""
    what = re.sub(r" \(at (line [0-9]+, column [0-9]+|end of document)\)$", "", what)
    return what[:1].lower() + what[1:]


def _from_nodes(text: str, reader: "_Nodes", language: str) -> Any:
    try:
        loader = yaml.BaseLoader(text)
        node = loader.get_single_node()
        return None if node is None else reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "malformed"
        line = None if mark is None else mark.line + 1
        raise _malformed(language, what, line) from error
    except yaml.YAMLError as error:
        what = str(error).partition("\n")[0]
        raise Malformed(f"is not {language}: {what}") from error
    except RecursionError as error:
        raise Malformed("is nested too deeply") from error
    except Malformed:
        raise
    except (ValueError, OverflowError) as error:  # an escape that is no character
        raise Malformed(f"is not {language}: {_plain(str(error))}") from error


class _Nodes:
    """YAML's nodes to values.

    Not PyYAML's own constructor: to that `on` is true, 12:30 is 750 and a date is no
    text, and an alias may unfold to more than memory holds.
    """

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        if id(node) in self._seen:
            raise Malformed("has an alias; write the value out", line)
        self._seen.add(id(node))
        if str(node.tag).removeprefix("tag:yaml.org,2002:") not in _TAGS:
            raise Malformed(f"has the tag {node.tag}; only plain values are read", line)
        if isinstance(node, yaml.ScalarNode):
            text = _joined(str(node.value))
            return _scalar(text) if node.style is None else text
        if isinstance(node, yaml.SequenceNode):
            entries: list[Any] = []
            for number, child in enumerate(cast("list[yaml.Node]", node.value)):
                self.lines[*path, number] = child.start_mark.line + 1
                entries.append(self.value(child, (*path, number)))
            return entries
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, child in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                raise Malformed("has a key that is no text", line)
            word = _joined(str(name.value))
            if word in values:
                raise Malformed(f'has the key "{word}" twice', line, KEEP_ONE)
            self.lines[*path, word] = line
            values[word] = self.value(child, (*path, word))
        return values


def _joined(text: str) -> str:
    """JSON writes a rare character as two escapes, which YAML takes for two."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


READERS: dict[str, Callable[[str], Document]] = {
    ".toml": read_toml,
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".json": read_json,
}
