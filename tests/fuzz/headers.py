"""Throw model files at the scan until the time is up: python -m tests.fuzz.headers.

GGUF, safetensors and the JSON beside them: cut off, with huge counts, wrong types,
lengths that lead back to where they stand, nested without end. Each must be a model or
a trouble with the file's name, within LIMIT seconds and MEMORY bytes, and something
that the inventory can send.
"""

import argparse
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from llmgw.agent.probes import SCAN_MEMORY
from llmgw.discovery.found import clean
from llmgw.weights.local import survey

# Of one file, on a machine that does something else as well.
LIMIT = 20
MEMORY = SCAN_MEMORY

_KEYS = (
    "general.architecture", "general.name", "general.type", "general.file_type",
    "general.alignment", "llama.context_length", "llama.block_count", "split.count",
    "tokenizer.ggml.tokens", "tokenizer.chat_template", "x", "",
)  # fmt: skip
_NUMBERS = (
    0, 1, 2, 3, 7, 8, 9, 12, 13, 31, 32, 255, 4096, 65535, 65536, 1 << 20, 8 << 20,
    (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
    (1 << 64) - 8, (1 << 64) - 24,
)  # fmt: skip
_TEXTS = ("llama", "clip", "adapter", "mmproj", "\x1b[2J", "a" * 5000, "\ud800", "\0")
_NAMES = (
    "dtype", "shape", "data_offsets", "__metadata__", "architectures", "model_type",
    "text_config", "vision_config", "max_position_embeddings", "vocab_size",
    "quantization_config", "quant_method", "bits", "weight_map", "chat_template",
    "base_model_name_or_path", "files", "sha256", "a.safetensors", "../a", "a",
)  # fmt: skip
_BESIDE = (
    "config.json", "adapter_config.json", "tokenizer_config.json",
    "model.safetensors.index.json", "llmgw-complete.json",
)  # fmt: skip


class Tally(NamedTuple):
    tried: int
    models: int
    slowest: float
    memory: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**32
    sys.stdout.write(f"seed {seed}\n")
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        said = run(random.Random(seed), arguments.seconds, Path(folder))
    sys.stdout.write(
        f"{said.tried} files, {said.models} of them models, the others named with a "
        f"reason; the slowest took {said.slowest:.2f} s, the most memory was "
        f"{said.memory >> 20} MiB\n"
    )
    return 0


def _late(_: int, __: FrameType | None) -> None:
    raise AssertionError(f"a file took longer than {LIMIT} s")


def run(chance: random.Random, seconds: float, folder: Path) -> Tally:
    """AssertionError, or whatever else comes out of the scan, once files are shown."""
    until = time.monotonic() + seconds
    tried = models = 0
    slowest = 0.0
    kinds: tuple[Callable[[random.Random, Path], Path], ...] = (_gguf, _hub)
    before = signal.signal(signal.SIGALRM, _late)
    try:
        while time.monotonic() < until:
            home = folder / str(tried)
            home.mkdir()
            path = chance.choice(kinds)(chance, home)
            signal.alarm(LIMIT)
            began = time.monotonic()
            models += _judged(home, path)
            slowest = max(slowest, time.monotonic() - began)
            signal.alarm(0)
            tried += 1
            shutil.rmtree(home)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Tally(tried, models, slowest, memory)


def _judged(home: Path, path: Path) -> bool:
    """Whether it is a model; if not, its name stands in the answer."""
    try:
        found = clean(json.loads(json.dumps(survey([str(home)]))))
        msgspec.json.encode([found.value, found.troubles])
    except BaseException:
        for one in sorted(home.iterdir()):
            sys.stdout.write(f"{one.name}: {one.read_bytes()[:4096]!r}\n")
        raise
    models = [model["path"] for model in found.value]
    wrong = [trouble.where for trouble in found.troubles]
    assert str(path) in [*models, *wrong], f"nothing is said of {path}"
    return str(path) in models


# GGUF -----------------------------------------------------------------------------


def _gguf(chance: random.Random, home: Path) -> Path:
    order = chance.choice("<<<>")
    pairs = [_pair(chance, order) for _ in range(chance.randrange(8))]
    tensors = [_tensor(chance, order) for _ in range(chance.randrange(4))]
    version = chance.choice((3, 3, 3, 3, 2, 1, 1 << 31))
    data = b"GGUF" + struct.pack(f"{order}I", version)
    for honest in (len(tensors), len(pairs)):
        data += _count(chance, order, honest)
    data += b"".join((*pairs, *tensors))
    data += bytes(chance.choice((0, 0, 31, 4096, 3 << 20)))
    path = home / "a.gguf"
    path.write_bytes(_damaged(chance, data))
    return path


def _count(chance: random.Random, order: str, honest: int) -> bytes:
    """Mostly the truth, so that what comes behind is read too."""
    said = honest if chance.random() < 0.9 else chance.choice(_NUMBERS)
    return struct.pack(f"{order}Q", said)


def _text(chance: random.Random, order: str, text: str) -> bytes:
    content = text.encode(errors="surrogatepass")
    return _count(chance, order, len(content)) + content


def _pair(chance: random.Random, order: str) -> bytes:
    kind = chance.choice((0, 4, 4, 5, 7, 8, 8, 9, 9, 10, 12, 13, 77))
    head = _text(chance, order, chance.choice(_KEYS)) + struct.pack(f"{order}I", kind)
    return head + _value(chance, order, kind, 0)


def _value(chance: random.Random, order: str, kind: int, depth: int) -> bytes:
    if kind == 8:
        return _text(chance, order, chance.choice(_TEXTS))
    if kind == 9:
        inner = chance.choice((0, 4, 8, 8, 9, 13))
        count = chance.choice((0, 1, 2, 300, 5000))
        if inner == 9:
            count = min(count, 2 if depth < 6 else 0)
        head = struct.pack(f"{order}I", inner) + _count(chance, order, count)
        one = [_value(chance, order, inner, depth + 1) for _ in range(min(count, 4))]
        return head + b"".join(one) * (max(1, count // max(1, len(one))))
    size = {0: 1, 1: 1, 7: 1, 2: 2, 3: 2, 10: 8, 11: 8, 12: 8}.get(kind, 4)
    return (chance.choice(_NUMBERS) & (1 << 8 * size) - 1).to_bytes(
        size, "little" if order == "<" else "big"
    )


def _tensor(chance: random.Random, order: str) -> bytes:
    dimensions = chance.choice((0, 1, 2, 2, 4, 8, 9, 1 << 31))
    data = _text(chance, order, "t") + struct.pack(f"{order}I", dimensions)
    for _ in range(min(dimensions, 9)):
        data += struct.pack(f"{order}Q", chance.choice(_NUMBERS))
    return data + struct.pack(
        f"{order}IQ", chance.choice((0, 1, 12, 30, 99)), chance.choice(_NUMBERS)
    )


# Folders as on the hub ------------------------------------------------------------


def _hub(chance: random.Random, home: Path) -> Path:
    head = _json(chance, _tensors(chance))
    length = len(head) if chance.random() < 0.8 else chance.choice(_NUMBERS)
    data = length.to_bytes(8, "little") + head + bytes(chance.choice((0, 8, 4096)))
    (home / "a.safetensors").write_bytes(_damaged(chance, data))
    for name in _BESIDE:
        if chance.random() < 0.5:
            content = _json(chance, _anything(chance, 4))
            (home / name).write_bytes(_damaged(chance, content))
    return home


def _json(chance: random.Random, value: Any) -> bytes:
    if chance.random() < 0.05:  # nested deeper than any reader goes
        sign = chance.choice((b"[", b'{"a":', b'{"text_config":'))
        return sign * chance.choice((1000, 100_000))
    return json.dumps(value, ensure_ascii=chance.random() < 0.5).encode(
        errors="surrogatepass"
    )


def _tensors(chance: random.Random) -> Any:
    if chance.random() < 0.1:
        return _anything(chance, 3)
    found: dict[str, Any] = {}
    for name in range(chance.choice((0, 1, 3, 2000))):
        first, last = chance.choice(_NUMBERS), chance.choice(_NUMBERS)
        found[str(name)] = {
            "dtype": chance.choice(("BF16", "F8_E4M3", 7, None)),
            "shape": [chance.choice(_NUMBERS) for _ in range(chance.randrange(20))],
            "data_offsets": [first, last][: chance.choice((2, 2, 2, 1))],
        }
        if chance.random() < 0.1:
            found[str(name)][chance.choice(_NAMES)] = _anything(chance, 2)
    return found


def _anything(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind < 6:
        scalars: tuple[Any, ...] = (
            None, True, 1.5e308, chance.choice(_NUMBERS), chance.choice(_TEXTS),
            -(10**30),
        )  # fmt: skip
        return scalars[kind]
    size = range(chance.randrange(4))
    if kind == 6:
        return [_anything(chance, depth - 1) for _ in size]
    return {chance.choice(_NAMES): _anything(chance, depth - 1) for _ in range(6)}


# Both -----------------------------------------------------------------------------


def _damaged(chance: random.Random, data: bytes) -> bytes:
    for damage in _damages(chance):
        at = chance.randrange(len(data) + 1)
        if damage == "cut":
            data = data[:at]
        elif damage == "flip" and at < len(data):
            data = (
                data[:at]
                + bytes([data[at] ^ 1 << chance.randrange(8)])
                + data[at + 1 :]
            )
        elif damage == "number":
            number = struct.pack("<Q", chance.choice(_NUMBERS))
            data = data[:at] + number + data[at + 8 :]
        elif damage == "twice":
            data = data[:at] + data[at // 2 :]
    return data


def _damages(chance: random.Random) -> Iterator[str]:
    while chance.random() < 0.4:
        yield chance.choice(("cut", "flip", "number", "twice"))


if __name__ == "__main__":
    sys.exit(main())
