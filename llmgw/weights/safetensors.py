"""Folders as on the hub: safetensors files with a config.json beside them."""

import json
import os
from math import prod
from pathlib import Path
from typing import Any, cast

from llmgw.files import read
from llmgw.weights.gguf import MAX_PARAMETERS, MAX_WORDS, Broken

# The format allows 100 MB, the largest models have ten. As objects it is twenty times.
MAX_HEADER = 32 << 20
MAX_JSON = 32 << 20
MAX_DIMENSIONS = 16
INDEX = "model.safetensors.index.json"


def header(path: str) -> dict[str, Any]:
    """`{parameters, dtype}` of one file; Broken if it cannot be believed or is cut off.

    OSError if the file cannot be read.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise Broken(f"is cut off: its header of {length} bytes is not there")
        if length > MAX_HEADER:
            raise Broken(f"has a header of {length} bytes, more than {MAX_HEADER}")
        said = _decoded(file.read(length))
    parameters, end = 0, 0
    by_type: dict[str, int] = {}
    for name, tensor in said.items():
        if name != "__metadata__":
            values, last, dtype = _tensor(name, tensor)
            parameters += values
            end = max(end, last)
            by_type[dtype] = by_type.get(dtype, 0) + values
    if 8 + length + end > size:
        raise Broken(f"is cut off: {size} of {8 + length + end} bytes are there")
    if parameters > MAX_PARAMETERS:
        raise Broken("claims more parameters than any model has")
    found: dict[str, Any] = {"parameters": parameters}
    if by_type:
        found["dtype"] = max(by_type, key=lambda dtype: by_type[dtype])
    return found


def _tensor(name: str, tensor: Any) -> tuple[int, int, str]:
    try:
        shape, (first, last) = tensor["shape"], tensor["data_offsets"]
        numbers = [*shape, first, last]
        dtype = tensor["dtype"]
    except (KeyError, TypeError, ValueError):
        raise Broken(f"the tensor {name[:80]} is not described") from None
    # Bounded before they are multiplied: a million factors take minutes.
    if (
        len(shape) > MAX_DIMENSIONS
        or not all(type(one) is int and 0 <= one < 1 << 63 for one in numbers)
        or first > last
    ):
        raise Broken(f"the tensor {name[:80]} has no possible shape or place")
    return prod(shape), last, str(dtype)[:80]


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        said: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Broken("is no JSON where it has to be") from error
    if not isinstance(said, dict):
        raise Broken("is not a JSON object where it has to be")
    return cast("dict[str, Any]", said)


def document(path: Path) -> dict[str, Any]:
    """A JSON file beside the weights; empty if there is none that can be used."""
    try:
        return _decoded(read(path, MAX_JSON))
    except (OSError, Broken):
        return {}


def folder(path: str, files: dict[str, int]) -> dict[str, Any]:
    """The model in a folder; *files* are its safetensors with their sizes.

    Broken if a shard is missing or cut off.
    """
    home = Path(path)
    adapter = document(home / "adapter_config.json")
    wanted = _wanted(home, files)
    missing = [name for name in wanted if name not in files]
    if missing:
        raise Broken(
            f"{len(missing)} of {len(wanted)} shards are not there: {missing[0][:255]}"
        )
    heads = [header(str(home / name)) for name in wanted]
    config = document(home / "config.json")
    tokenizer = document(home / "tokenizer_config.json")
    found = {
        "format": "safetensors",
        "kind": "lora" if adapter else "model",
        "base": _text(adapter.get("base_model_name_or_path")),
        "architecture": _architecture(config),
        "parameters": sum(head["parameters"] for head in heads) or None,
        "quantisation": _quantisation(config, heads),
        "context": _number(config, "max_position_embeddings"),
        "layers": _number(config, "num_hidden_layers"),
        "vocabulary": _number(config, "vocab_size"),
        "chat_template": "chat_template" in tokenizer
        or (home / "chat_template.jinja").exists()
        or (home / "chat_template.json").exists(),
        "projector": "vision_config" in config or None,
        "shards": len(wanted),
        "size": sum(files[name] for name in wanted),
    }
    return {key: value for key, value in found.items() if value is not None}


def _wanted(home: Path, files: dict[str, int]) -> list[str]:
    """The files that make the model: those of the index, or all that are there."""
    weight_map: Any = document(home / INDEX).get("weight_map")
    if isinstance(weight_map, dict):
        named = cast("dict[str, Any]", weight_map).values()
        return sorted({str(name) for name in named if "/" not in str(name)})
    # Some have the same weights once more in one file, for another program.
    if "model.safetensors" in files:
        return ["model.safetensors"]
    return sorted(files)


def _architecture(config: dict[str, Any]) -> str | None:
    named: Any = config.get("architectures")
    if isinstance(named, list) and named:
        return _text(cast("list[Any]", named)[0])
    return _text(config.get("model_type"))


def _number(config: dict[str, Any], key: str) -> int | None:
    """Of the language part, where a model has several."""
    inner: Any = config.get("text_config")
    places = [config]
    if isinstance(inner, dict):
        places.append(cast("dict[str, Any]", inner))
    for place in places:
        value = place.get(key)
        if type(value) is int and abs(value) < 1 << 63:
            return value
    return None


def _quantisation(config: dict[str, Any], heads: list[dict[str, Any]]) -> str | None:
    said: Any = config.get("quantization_config")
    if isinstance(said, dict):
        settings = cast("dict[str, Any]", said)
        method, bits = _text(settings.get("quant_method")), settings.get("bits")
        if method is not None:
            return f"{method}-{bits}bit" if type(bits) is int else method
    return heads[0].get("dtype") if heads else None


def _text(value: Any) -> str | None:
    return value[:MAX_WORDS] if isinstance(value, str) else None
