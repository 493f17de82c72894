"""Folders as on the hub: whole, without a shard, cut off, nonsense."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.weights import safetensors
from llmgw.weights.gguf import Broken
from llmgw.weights.safetensors import folder, header


def tensors(path: Path, shapes: dict[str, list[int]], dtype: str = "BF16") -> None:
    said: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = 2
        for number in shape:
            size *= number
        said[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(said).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(at))


def files(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in home.glob("*.safetensors")}


def test_a_model_in_two_shards(tmp_path: Path) -> None:
    tensors(tmp_path / "model-00001-of-00002.safetensors", {"a": [4, 5]})
    tensors(tmp_path / "model-00002-of-00002.safetensors", {"b": [6]})
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (tmp_path / safetensors.INDEX).write_text(json.dumps(index))
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "text_config": {"max_position_embeddings": 32768, "vocab_size": 151936},
        "quantization_config": {"quant_method": "awq", "bits": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text("x")

    found = folder(str(tmp_path), files(tmp_path))

    assert found["parameters"] == 26
    assert found["architecture"] == "Qwen3ForCausalLM"
    assert found["context"] == 32768
    assert found["vocabulary"] == 151936
    assert found["quantisation"] == "awq-4bit"
    assert found["chat_template"] is True
    assert found["shards"] == 2
    assert found["size"] == sum(files(tmp_path).values())

    (tmp_path / names[1]).unlink()
    with pytest.raises(Broken, match="1 of 2 shards are not there"):
        folder(str(tmp_path), files(tmp_path))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    tensors(tmp_path / "adapter_model.safetensors", {"a": [2, 2]})
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "org/base"})
    )

    found = folder(str(tmp_path), files(tmp_path))

    assert (found["kind"], found["base"]) == ("lora", "org/base")
    assert found["quantisation"] == "BF16"
    assert "context" not in found


def test_a_file_cut_off_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors(path, {"a": [100]})
    whole = path.read_bytes()
    for length in (0, 7, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(Broken, match="cut off"):
            header(str(path))


@given(st.binary(max_size=200))
def test_nonsense_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.safetensors"
    path.write_bytes(len(junk).to_bytes(8, "little") + junk)
    try:
        found = header(str(path))
    except Broken:
        return
    assert found == {"parameters": 0}  # an empty JSON object is allowed


@pytest.mark.parametrize(
    "said",
    [
        {"a": 1},
        {"a": {"dtype": "F16", "shape": [-1], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F16", "shape": [1], "data_offsets": [4, 2]}},
        {"a": {"dtype": "F16", "shape": ["x"], "data_offsets": [0, 2]}},
        {"a": {"dtype": "F16", "shape": 3, "data_offsets": [0, 2]}},
        [],
    ],
)
def test_what_is_said_of_a_tensor_is_checked(tmp_path: Path, said: Any) -> None:
    path = tmp_path / "model.safetensors"
    head = json.dumps(said).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(Broken):
        header(str(path))


def test_deep_nesting_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    head = b"[" * 200_000
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    with pytest.raises(Broken, match="no JSON"):
        header(str(path))


def test_a_config_that_is_a_fifo_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")

    assert safetensors.document(tmp_path / "config.json") == {}
