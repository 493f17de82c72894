"""Whoever is refused is told what to write instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.config.fields import known_keys
from llmgw.config.load import examine, load
from llmgw.errors import ConfigError, Fault


def faults(folder: Path, text: str, name: str = "agent.toml") -> tuple[Fault, ...]:
    path = folder / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.faults


@pytest.mark.parametrize("value", [3, True, "\x01", [[3]], {"a": [3]}], ids=str)
@pytest.mark.parametrize("key", known_keys(), ids=".".join)
def test_a_value_that_no_key_takes_is_refused_with_a_fix(
    key: tuple[str, ...], value: Any, tmp_path: Path
) -> None:
    inner: Any = value
    for part in reversed(key):
        inner = [inner] if part == "*" else {part: inner}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"server": "localhost"} | inner))

    without = [fault for fault in examine(path).faults if not fault.fix]

    assert not without


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("server = ['a', 'b']", "server", "name it servers, which is a list"),
        ("servers = 'a'", "servers", 'write servers = ["a"]'),
        ("labels.rack = 3", "labels.rack", 'write "3"'),
        ("labels.rack = true", "labels.rack", 'write "true"'),
        ("labels = ['a']", "labels", 'write it like labels = { rack = "a1" }'),
        ("mgmt_addr = 3", "mgmt_addr", 'write it like mgmt_addr = "10.20.0.5"'),
        (
            "[[fabrics]]\nname = 'a'",
            "fabrics[0].hcas",
            'write it like hcas = ["mlx5_0"]',
        ),
        (
            "[fabrics]\nname = 'a'",
            "fabrics",
            "write [[fabrics]] for each, not [fabrics]",
        ),
        ("discovery = 5", "discovery", "write [discovery] on a line, and what is in"),
        ("metrics.listen = 'a:99999'", "metrics.listen", "a port from 1 to 65535"),
        ("servers = ['a:99999']", "servers[0]", "a port from 1 to 65535"),
        ("mgmt_addr = '10.0.0.1:80'", "mgmt_addr", "without the port: 10.0.0.1"),
        ("discovery.prefer = true", "discovery.prefer", "prefer_nvml, interval, "),
        ("whatever = 1", "whatever", "llmgw schema --format markdown"),
        ("weights.quiet_hours = '08:00-08:00'", "weights.quiet_hours", "or remove it"),
        ("link.dial_timeout = '5'", "link.dial_timeout", 'dial_timeout = "3s"'),
        ("supervisor.port_range = '29-20'", "supervisor.port_range", "write 20-29"),
    ],
)
def test_the_fix_is_something_to_write(
    text: str, key: str, fix: str, tmp_path: Path
) -> None:
    servers = "" if text.startswith("server") else "servers = ['a']\n"

    (found,) = faults(tmp_path, f"{servers}{text}\n")

    assert found.key == key
    assert fix in found.fix


LIST = "is not TOML: the list that begins here is not closed"


@pytest.mark.parametrize(
    ("text", "line", "what", "fix"),
    [
        ("\nservers = ['a',\nnode_id = 'b'\n[tls]\n", 2, LIST, "write ]"),
        ("\nservers = ['a'\nnode_id = 'b'\n", 2, LIST, "write ]"),
        ("\r\nservers = ['a', # ]\r\n'b'\r\n[tls]\r\n", 2, LIST, "write ]"),
        ("[link]\nmodel_dirs = ['a',\n  ['b',\n", 2, LIST, "write ]"),
        ("servers = ['a' 'b']", 1, "have no comma between them", "write a comma"),
        ("servers = [cp1]", 1, "invalid value", "write text in quotes"),
        ('a = "x]\nb = 1\n', 1, "a text has no quotes at its end", "on its own line"),
        ("a = 5s", 1, "expected newline", 'durations and sizes do: "5s"'),
        ("[tls]\n[tls]\n", 2, "cannot declare tls twice", "below the first"),
        ("a = 1\na = 2\n", 2, "cannot overwrite a value", "keep one of the two"),
        ("server: a\n", 1, "expected '='", "write KEY = VALUE"),
        ('a = "C:\\x"\n', 1, "unescaped", "in single quotes"),
    ],
)
def test_a_slip_in_toml_is_told_where_it_was_made(
    text: str, line: int, what: str, fix: str, tmp_path: Path
) -> None:
    (found,) = faults(tmp_path, text)

    assert found.line == line
    assert what in found.what
    assert fix in found.fix


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("a.yaml", "tls:\n\tcert_file: a\n", "indent with spaces"),
        ("a.yaml", "servers: [a\nnode_id: b\n", "write ] behind the last entry"),
        ("a.yaml", "node_id: a: b\n", "goes in quotes"),
        ("a.json", '{"servers": ["a"],}', "no comma behind the last"),
        ("a.json", '{"servers": [a]}', "write text in double quotes"),
        ("a.json", "{'servers': []}", "in double quotes"),
        ("a.json", '{"servers": ["a"], "servers": ["b"]}', "keep one of the two"),
        ("a.yaml", "servers: [a]\nservers: [b]\n", "keep one of the two"),
    ],
)
def test_a_slip_in_yaml_and_json_has_a_fix(
    name: str, text: str, fix: str, tmp_path: Path
) -> None:
    (found,) = faults(tmp_path, text, name)

    assert fix in found.fix


def test_what_is_said_is_not_the_contrary_of_what_is_written(tmp_path: Path) -> None:
    text = "servers = ['fe80::1', 'fd00::1:7443']\nheartbeat_interval = '3 s'\n"

    one, other, space = faults(tmp_path, text)

    assert one.fix == "write [fe80::1]"  # and not [fe80:]:1, which is no address
    assert other.fix == "write [fd00::1:7443], or [fd00::1]:7443 if 7443 is the port"
    assert "has a space in it" in space.what
