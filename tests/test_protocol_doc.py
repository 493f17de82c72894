"""docs/protocol.md holds: each example decodes, and each message has one."""

import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from llmgw import wire
from llmgw.control.refusals import refused

DOCUMENT = Path(__file__).parent.parent / "docs/protocol.md"
TEXT = DOCUMENT.read_text()
BLOCK = re.compile(r"```json (\w+)\n(.*?)```", re.DOTALL)
EXAMPLES: list[tuple[str, str]] = BLOCK.findall(TEXT)
MESSAGES = (
    *("Register", "Registered", "Heartbeat", "HeartbeatAck", "Facts", "Event"),
    *("Goodbye", "Probe", "Probed", "Leader", "Refusal"),
)
REFUSALS = (
    *("not_leader", "node_in_use", "identity_mismatch", "protocol"),
    *("unknown_session", "stale_epoch", "busy"),
)


@pytest.mark.parametrize(("kind", "example"), EXAMPLES)
def test_an_example_means_what_it_says(kind: str, example: str) -> None:
    written = msgspec.json.decode(example)
    read = decoded(kind, example)

    # Nothing in it was skipped as unknown, and so nothing in it is misspelt.
    assert fields(written) - fields(read) == set()


def decoded(kind: str, example: str) -> Any:
    """What the program makes of *example*, as plain objects with every default."""
    if kind != "line":
        return plain(msgspec.json.decode(example, type=getattr(wire, kind)))
    line = wire.decode_line(" ".join(example.split()).encode())
    assert line is not None
    if isinstance(line, wire.Snapshot):
        replicas = [plain(wanted.replica) for wanted in line.wanted()]
        assert len(replicas) == 1
        line = msgspec.structs.replace(line, replicas=())
        return {**plain(line), "t": "snapshot", "replicas": replicas}
    return {**plain(line), "t": line.__struct_config__.tag}


def plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: plain(of) for name, of in msgspec.structs.asdict(value).items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: plain(one) for key, one in items}
    return value


def fields(value: Any, at: str = "") -> set[str]:
    """The path of every field in *value*."""
    if isinstance(value, dict):
        return {
            path
            for key, one in cast("dict[str, Any]", value).items()
            for path in {f"{at}.{key}", *fields(one, f"{at}.{key}")}
        }
    if isinstance(value, list):
        return {path for one in cast("list[Any]", value) for path in fields(one, at)}
    return set()


def test_every_message_and_every_line_has_an_example() -> None:
    kinds = {kind for kind, _ in EXAMPLES}
    said = [msgspec.json.decode(text) for kind, text in EXAMPLES if kind == "line"]
    lines = {line["t"] for line in said}

    assert kinds == {*MESSAGES, "line"}
    assert lines == {"snapshot", "ping", "ask", "bye"}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_has_the_status_that_is_written(code: str) -> None:
    row = next(line for line in TEXT.splitlines() if f"| `{code}`" in line)

    assert str(refused(code, "").status) in row.split("|")[1]
