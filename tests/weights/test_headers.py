"""Headers that a fuzzer makes up: a model or a reason, and always something to send."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.discovery.child import Child
from llmgw.discovery.found import Found, Trouble, clean
from tests.fuzz import headers
from tests.weights.test_gguf import model
from tests.weights.test_safetensors import tensors


def scanned(folder: Path, memory: int | None = None) -> Found:
    child = Child("llmgw.weights.local", "survey", is_bare=True, memory=memory)
    return child.ask({"folders": [str(folder)]}, 30)


def test_whatever_stands_in_a_header_it_is_named_in_time(tmp_path: Path) -> None:
    """As `python -m tests.fuzz.headers`, for a moment and always the same files."""
    said = headers.run(random.Random(20), 2.0, tmp_path)

    assert said.tried > 50
    assert said.models > 0
    assert said.slowest < 5


def test_a_name_that_no_message_can_carry_is_spelled_out(tmp_path: Path) -> None:
    """It ended the agent: what cannot be encoded cannot be hashed or sent either."""
    model(Path(f"{tmp_path}/caf\udce9.gguf"))
    tensors(tmp_path / "a.safetensors", {"a": [2]})
    (tmp_path / "config.json").write_text('{"model_type": "\\ud800\\u001b[2J"}')

    found = scanned(tmp_path)

    assert msgspec.json.encode(found.value)
    assert {one["path"] for one in found.value} == {
        str(tmp_path),
        f"{tmp_path}/caf\\udce9.gguf",
    }
    assert found.value[0]["architecture"] == "\\ud800\\x1b[2J"


def test_what_a_probe_says_is_cleaned_and_its_memory_is_not() -> None:
    said = Found(
        {"\udc80": ["a\n"]}, "s", "\x1b", (Trouble("c", "\udc80"),), ["\udc80"]
    )

    found = clean(said)

    assert found.value == {"\\udc80": ["a\\n"]}
    assert (found.reason, found.troubles[0].what) == ("\\x1b", "\\udc80")
    assert found.memory == ["\udc80"]


def test_a_scan_has_no_more_memory_than_it_is_given(tmp_path: Path) -> None:
    """A header of millions of empty lists is thirty times as large once it is read."""
    head = b"[" + b"[]," * 5_000_000 + b"[]]"
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)

    found = scanned(tmp_path, 200 << 20)

    ((code, what, where, _, _),) = found.troubles
    assert (code, where) == ("model_unusable", str(tmp_path))
    assert "more memory" in what


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ([1 << 63], "no possible shape"),
        ([2] * 1000, "no possible shape"),
        ([1 << 40, 1 << 40], "more parameters"),
    ],
)
def test_no_shape_is_believed(tmp_path: Path, shape: list[int], why: str) -> None:
    tensor: dict[str, Any] = {"dtype": "F16", "shape": shape, "data_offsets": [0, 0]}
    head = json.dumps({"a": tensor}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head)

    (trouble,) = scanned(tmp_path).troubles

    assert why in trouble.what
