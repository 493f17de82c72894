"""On which line a key stands, in each of the three languages."""

import json

import pytest

from llmgw.config import syntax
from llmgw.config.report import dotted
from llmgw.config.toml_places import places

TOML = '''\
# a comment with key = 1
server = "a"   # behind it = 2
servers = [
  "b",  # one
  "c", 'd',
]
text = """
not = "a key"
[nor.a.table]
"""
raw = \'\'\'
it's = 1
\'\'\'
labels = { rack = "a1", "odd key" = "#" }
a.b.c = 1979-05-27 07:32:00
"quoted \\u00e4" = [ { x = 1 }, { x = [ 2,
  3 ] } ]

[tls]
cert_file = "/c"
[[fabrics]]
name = "ib"
hcas = [ "m0",
         "m1" ]
[[fabrics]]
name = "jb"
[fabrics.more]
deep = true
'''


def test_the_lines_of_toml() -> None:
    found = {dotted(path): line for path, line in places(TOML).items()}

    assert found == {
        "server": 2,
        "servers": 3,
        "servers[0]": 4,
        "servers[1]": 5,
        "servers[2]": 5,
        "text": 7,
        "raw": 11,
        "labels": 14,
        "labels.rack": 14,
        'labels."odd key"': 14,
        "a": 15,
        "a.b": 15,
        "a.b.c": 15,
        '"quoted ä"': 16,
        '"quoted ä"[0]': 16,
        '"quoted ä"[0].x': 16,
        '"quoted ä"[1]': 16,
        '"quoted ä"[1].x': 16,
        '"quoted ä"[1].x[0]': 16,
        '"quoted ä"[1].x[1]': 17,
        "tls": 19,
        "tls.cert_file": 20,
        "fabrics": 21,
        "fabrics[0]": 21,
        "fabrics[0].name": 22,
        "fabrics[0].hcas": 23,
        "fabrics[0].hcas[0]": 23,
        "fabrics[0].hcas[1]": 24,
        "fabrics[1]": 25,
        "fabrics[1].name": 26,
        "fabrics[1].more": 27,
        "fabrics[1].more.deep": 28,
    }


def test_lines_end_in_carriage_returns_as_well() -> None:
    text = TOML.replace("\n", "\r\n")

    assert places(text) == places(TOML)


def test_the_lines_of_yaml_and_what_its_words_mean() -> None:
    document = syntax.read_yaml(
        "a: on\nb:\n- 12:30\n- 2024-01-01\n- 'true'\nc: {d: true, e: 0x10, f: .5}\n"
    )

    assert document.values == {
        "a": "on",
        "b": ["12:30", "2024-01-01", "true"],
        "c": {"d": True, "e": "0x10", "f": 0.5},
    }
    assert {dotted(path): line for path, line in document.lines.items()} == {
        "a": 1,
        "b": 2,
        "b[0]": 3,
        "b[1]": 4,
        "b[2]": 5,
        "c": 6,
        "c.d": 6,
        "c.e": 6,
        "c.f": 6,
    }


@pytest.mark.parametrize("indent", [1, "\t", None])
def test_the_lines_of_json(indent: int | str | None) -> None:
    values = {"a": 1, "b": [{"c": "\u00e4\n\U0001f600"}]}

    document = syntax.read_json(json.dumps(values, indent=indent))

    assert document.values == values
    lines = {dotted(path): line for path, line in document.lines.items()}
    assert set(lines) == {"a", "b", "b[0]", "b[0].c"}
    assert lines["b[0].c"] == (1 if indent is None else 5)
