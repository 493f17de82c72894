"""The header of a GGUF file. It comes from strangers: no length in it is believed.

Every read is checked against the file, and all of them together against limits that no
real model comes near. Without msgspec: scans run in a child that starts in a blink.
"""

import os
import struct
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from llmgw.weights.ggml import FILE_TYPES, TYPES

MAX_PAIRS = 100_000
MAX_TENSORS = 200_000
MAX_KEY = 65_536  # the format's own limit
MAX_TEXT = 64 << 20
MAX_WORDS = 4096  # of a name; what is longer is no name
MAX_ITEMS = 8 << 20
MAX_ARRAYS = 10_000  # arrays of arrays are allowed, and nobody has any
MAX_DEPTH = 4
MAX_DIMENSIONS = 8
# More than anybody will train, and small enough for every reader of the inventory.
MAX_PARAMETERS = 1 << 60
# How much of a file is read, until its header is whole. A map would be shorter, and a
# file cut off under it would end this process.
STEPS = (2 << 20, 32 << 20, 256 << 20)

# fmt: off
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?",
    10: "Q", 11: "q", 12: "d",
}
# fmt: on
_STRING, _ARRAY = 8, 9


class Broken(Exception):
    """The file is no model that could be read: *str(error)* says why."""


class _More(Exception):
    """The header goes on behind what was read."""


class Length(NamedTuple):
    """An array that was passed over."""

    items: int


# What is looked at, by the end of its name: most begin with the architecture, which
# may stand behind them. Nothing else is kept, whatever a file says.
_KEPT = (
    "general.architecture",
    "general.name",
    "general.type",
    "general.file_type",
    "general.alignment",
    "split.count",
    "tokenizer.ggml.tokens",
    "tokenizer.chat_template",
    ".context_length",
    ".block_count",
    ".embedding_length",
    ".vocab_size",
)


class _Reader:
    """Reads forward in *data*, never past its end."""

    def __init__(self, data: bytes, size: int, order: str) -> None:
        self.data = data
        self.size = size
        self.order = order
        self.at = 0
        self._items = 0

    def take(self, code: str) -> Any:
        form = struct.Struct(self.order + code)
        self.room(form.size)
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def room(self, size: int) -> None:
        if size > self.size - self.at:
            raise Broken(f"ends at {self.size}, in the middle of its header")
        if size > len(self.data) - self.at:
            raise _More

    def text(self, limit: int) -> str:
        """Its beginning, where it is longer than a name can be."""
        size = self.take("Q")
        if size > limit:
            raise Broken(f"has a text of {size} bytes, more than {limit}")
        self.room(size)
        self.at += size
        start = self.at - size
        kept = self.data[start : start + min(size, MAX_WORDS)]
        return kept.decode(errors="replace")

    def count(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise Broken(f"has arrays of more than {MAX_ITEMS} items")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.text(MAX_TEXT)
        if kind == _ARRAY:
            return self._skip_array(depth)
        raise Broken(f"has a value of the unknown type {kind}")

    def _skip_array(self, depth: int) -> Length:
        kind, items = self.take("I"), self.take("Q")
        if depth >= MAX_DEPTH:
            raise Broken("has arrays within arrays within arrays")
        self.count(items)
        if kind in _SCALARS:
            size = items * struct.calcsize("=" + _SCALARS[kind])
            self.room(size)
            self.at += size
        elif kind == _STRING:
            self._skip_texts(items)
        else:
            if items > MAX_ARRAYS:
                raise Broken(f"has an array of {items} arrays")
            self.room(12 * items)
            for _ in range(items):
                self.value(kind, depth + 1)
        return Length(items)

    def _skip_texts(self, items: int) -> None:
        """A vocabulary has a quarter of a million; this loop is the scan's time."""
        self.room(8 * items)
        unpack, data = struct.Struct(self.order + "Q").unpack_from, self.data
        at, end = self.at, len(self.data)
        for _ in range(items):
            if at + 8 > end:
                self.at = at
                self.room(8)
            size = unpack(data, at)[0]
            if size > end - at - 8:
                self.at = at + 8
                self.room(size)
            at += 8 + size
        self.at = at


def read(path: str) -> dict[str, Any]:
    """What the header says of the model; Broken if it cannot be believed or is cut off.

    OSError if the file cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(handle).st_size
        for step in STEPS:
            try:
                return parse(os.pread(handle, min(step, size), 0), size)
            except _More:
                continue
        raise Broken(f"has a header of more than {STEPS[-1]} bytes")
    finally:
        os.close(handle)


def parse(data: bytes, size: int) -> dict[str, Any]:
    """*data* is the beginning of a file of *size* bytes."""
    if size < 24:
        raise Broken("is too short for a GGUF file")
    if data[:4] != b"GGUF":
        raise Broken("does not begin with GGUF")
    # A version that only makes sense the other way round is a big-endian file.
    order = "<" if data[4:6] != b"\0\0" else ">"
    reader = _Reader(data, size, order)
    reader.at = 4
    version = reader.take("I")
    if version not in (2, 3):
        raise Broken(f"is of GGUF version {version}; 2 and 3 can be read")
    tensors, pairs = reader.take("Q"), reader.take("Q")
    if tensors > MAX_TENSORS or pairs > MAX_PAIRS:
        raise Broken(f"claims {tensors} tensors and {pairs} settings")
    said: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.text(MAX_KEY)
        value = reader.value(reader.take("I"))
        if key.endswith(_KEPT):
            said[key] = value
    return _summary(said, _tensors(reader, tensors, said))


class _Tensors(NamedTuple):
    parameters: int
    quantisation: str | None
    needs: int


def _tensors(reader: _Reader, count: int, said: dict[str, Any]) -> _Tensors:
    """Parameters, the type of most of them, and how long the file has to be."""
    by_type: dict[int, int] = {}
    furthest = 0
    for _ in range(count):
        reader.text(MAX_KEY)
        dimensions = reader.take("I")
        if dimensions > MAX_DIMENSIONS:
            raise Broken(f"has a tensor of {dimensions} dimensions")
        values = prod(reader.take("Q") for _ in range(dimensions))
        kind, offset = reader.take("I"), reader.take("Q")
        by_type[kind] = by_type.get(kind, 0) + values
        _, block, size = TYPES.get(kind, ("", 1, 0))
        furthest = max(furthest, offset + values // block * size)
    alignment = said.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise Broken(f"has an alignment of {alignment}")
    start = -(-reader.at // alignment) * alignment
    needs = start + furthest if count else reader.at
    if needs > reader.size:
        raise Broken(f"is cut off: {reader.size} of {needs} bytes are there")
    parameters = sum(by_type.values())
    if parameters > MAX_PARAMETERS:
        raise Broken("claims more parameters than any model has")
    most = max(by_type, key=lambda kind: by_type[kind], default=-1)
    name = TYPES[most][0] if most in TYPES else None
    return _Tensors(parameters, name, needs)


def _summary(said: dict[str, Any], tensors: _Tensors) -> dict[str, Any]:
    name: Callable[[str], Any] = lambda key: _of(said, key, str)  # noqa: E731
    architecture = name("general.architecture")
    own = f"{architecture}."
    tokens = said.get("tokenizer.ggml.tokens")
    file_type = _of(said, "general.file_type", int)
    kind = {"adapter": "lora", "mmproj": "projector"}.get(name("general.type") or "")
    found = {
        "format": "gguf",
        "kind": kind or ("projector" if architecture == "clip" else "model"),
        "name": name("general.name"),
        "architecture": architecture,
        "parameters": tensors.parameters or None,
        "quantisation": FILE_TYPES.get(-1 if file_type is None else file_type)
        or tensors.quantisation,
        "context": _of(said, f"{own}context_length", int),
        "layers": _of(said, f"{own}block_count", int),
        "embedding": _of(said, f"{own}embedding_length", int),
        "vocabulary": tokens.items
        if isinstance(tokens, Length)
        else _of(said, f"{own}vocab_size", int),
        "chat_template": "tokenizer.chat_template" in said,
        "split": _of(said, "split.count", int),
    }
    return {key: value for key, value in found.items() if value is not None}


def _of(said: dict[str, Any], key: str, kind: type) -> Any:
    """The value, if it is of the kind that it has to be."""
    value = said.get(key)
    return value if type(value) is kind else None
