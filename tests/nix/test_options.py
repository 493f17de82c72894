"""The options are the keys: same paths, same defaults, same sentences, both ways."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.config.keys import Config
from tests.nix.nix import ROOT, evaluate, value

# What an older file may still say; folded into `servers` before anybody sees it.
ALIASES = {"server"}

Option = dict[str, Any]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Option]:
    listed = evaluate(tmp_path_factory.mktemp("nix"), report="options")
    return {option["path"]: option for option in listed}


def keys_of(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield prefix + field.name
        yield from members_of(
            msgspec.inspect.type_info(field.type), prefix + field.name
        )


def members_of(kind: msgspec.inspect.Type, path: str) -> Iterator[str]:
    match kind:
        case msgspec.inspect.Metadata():
            yield from members_of(kind.type, path)
        case msgspec.inspect.UnionType():
            for one in kind.types:
                yield from members_of(one, path)
        case msgspec.inspect.StructType():
            yield from keys_of(kind.cls, f"{path}.")
        case msgspec.inspect.VarTupleType():
            yield from members_of(kind.item_type, f"{path}.*")
        case _:
            pass


def test_every_key_is_an_option_and_every_option_a_key(
    options: dict[str, Option],
) -> None:
    assert set(options) - ALIASES == set(keys_of(Config))


def in_schema(
    schema: dict[str, Any], at: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of the schema with what it says of it, references followed."""
    for name, said in at.get("properties", {}).items():
        key = said
        if "$ref" in said:
            key = schema["$defs"][said["$ref"].rpartition("/")[2]] | said
        yield path + name, key
        for member in key.get("anyOf", [key]):
            item = member.get("items", member)
            if "$ref" in item:
                item = schema["$defs"][item["$ref"].rpartition("/")[2]]
            star = "*." if "items" in member else ""
            yield from in_schema(schema, item, f"{path}{name}.{star}")


def test_an_option_says_and_defaults_to_what_its_key_does(
    options: dict[str, Option],
) -> None:
    schema = json.loads((ROOT / "nixos-module/schema.json").read_text())
    top = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    keys = dict(in_schema(schema, top))

    assert set(keys) == set(options)
    for path, key in keys.items():
        assert options[path]["description"] == key["description"], path
        if "properties" in key:
            assert options[path]["default"] == {}, path
        elif "default" in key:
            assert options[path]["default"] == key["default"], path


def test_a_key_without_a_description_stops_the_evaluation(tmp_path: Path) -> None:
    expression = f"""
      let lib = import {ROOT}/tests/nix/lib.nix; in
      (import {ROOT}/nixos-module/from-schema.nix {{
        inherit lib;
        schema.properties.silent.type = "string";
      }}).options.silent.description
    """

    with pytest.raises(RuntimeError, match="silent has no description"):
        value(tmp_path, "-E", expression)


def test_a_type_that_nix_has_no_word_for_stops_the_evaluation(tmp_path: Path) -> None:
    expression = f"""
      let lib = import {ROOT}/tests/nix/lib.nix; in
      (import {ROOT}/nixos-module/from-schema.nix {{
        inherit lib;
        schema.properties.odd = {{ type = "date"; description = "Odd."; }};
      }}).options.odd.type.description
    """

    with pytest.raises(RuntimeError, match="no NixOS type for odd"):
        value(tmp_path, "-E", expression)
