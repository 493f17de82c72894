"""What is made from the keys is as the keys are now, and right."""

import json
import re
from pathlib import Path

import pytest

from llmgw.config.document import example, markdown
from llmgw.config.fields import known_keys
from llmgw.config.load import load
from llmgw.config.schema import json_schema

ROOT = Path(__file__).parents[2]

MADE = {
    "nixos-module/schema.json": json_schema,
    "docs/configuration.md": markdown,
    "docs/agent.example.toml": example,
}


@pytest.mark.parametrize("name", MADE)
def test_the_committed_file_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == MADE[name](), "run `make generate`"


def test_the_page_has_every_key_with_its_option() -> None:
    page = markdown()

    for path in known_keys():
        name = ".".join(path)
        if not any(
            other[: len(path)] == path for other in known_keys() if other != path
        ):
            assert f"| `{name}` |" in page
            assert f"| `services.llmgw-agent.settings.{name}` |" in page


def test_the_example_is_right_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(example())

    assert load(path).config.servers == ("http://cp1:7443", "http://cp2:7443")


def test_the_example_is_right_with_every_key_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(re.sub(r"(?m)^# (\[\[.*\]\]|[a-z_]+ = .*)$", r"\1", example()))

    loaded = load(path)

    written = {re.sub(r"\[\d+\]", ".*", name) for name in loaded.places}
    assert {".".join(key) for key in known_keys()} <= written


def test_patterns_are_within_what_nix_reads() -> None:
    """POSIX extended: no \\d, no groups that do not capture, nothing lazy."""
    patterns = re.findall(r'"pattern": "(.*)"', json_schema())

    assert patterns
    for pattern in map(json.loads, (f'"{p}"' for p in patterns)):
        assert not re.search(r"\\[a-zA-Z]|\(\?|(?<!\\)[*+?}]\?", pattern), pattern
        assert re.compile(pattern)


def test_every_key_is_described_and_has_an_example() -> None:
    for name, definition in json.loads(json_schema())["$defs"].items():
        for key, said in definition["properties"].items():
            assert said["description"], f"{name}.{key}"
            assert "$ref" in said or said["examples"], f"{name}.{key}"


def test_every_limit_of_a_duration_is_in_the_schema() -> None:
    """Editors show it; the agent enforces it."""
    interval = json.loads(json_schema())["$defs"]["Config"]["properties"]

    assert interval["heartbeat_interval"]["x-minimum"] == "100ms"
    assert interval["heartbeat_interval"]["default"] == "5s"
    assert interval["heartbeat_interval"]["x-reload"] == "live"
