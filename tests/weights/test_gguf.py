"""GGUF headers: right ones from the reference writer, and every kind of wrong one."""

import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.weights import ggml, gguf
from llmgw.weights.gguf import Broken

TOKENS = [f"token{number}" for number in range(300)]


def model(path: Path, **more: int) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(4096)
    writer.add_block_count(2)
    writer.add_embedding_length(8)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.5] * len(TOKENS))
    writer.add_chat_template("{{ messages }}")
    for key, value in more.items():
        writer.add_uint32(key.replace("_", ".", 1), value)
    writer.add_tensor("token_embd.weight", np.ones((300, 8), dtype=np.float16))
    writer.add_tensor("output.weight", np.ones((64, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_header_says_what_the_model_is(tmp_path: Path) -> None:
    found = gguf.read(str(model(tmp_path / "tiny.gguf")))

    assert found == {
        "format": "gguf",
        "kind": "model",
        "name": "Tiny",
        "architecture": "llama",
        "parameters": 300 * 8 + 64 * 8,
        "quantisation": "Q4_K_M",
        "context": 4096,
        "layers": 2,
        "embedding": 8,
        "vocabulary": 300,
        "chat_template": True,
    }


def test_our_tables_are_those_of_the_reference() -> None:
    known = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in _types()}
    assert {key: known[key] for key in ggml.TYPES} == ggml.TYPES
    for number, name in ggml.FILE_TYPES.items():
        assert LlamaFileType(number).name in (f"MOSTLY_{name}", f"ALL_{name}")


def _types() -> list[GGMLQuantizationType]:
    return list(GGML_QUANT_SIZES)


def test_a_big_endian_file_is_read(tmp_path: Path) -> None:
    data = b"GGUF" + struct.pack(">IQQ", 3, 0, 1)
    data += struct.pack(">Q", 20) + b"general.architecture"
    data += struct.pack(">IQ", 8, 5) + b"llama"

    assert gguf.parse(data, len(data))["architecture"] == "llama"


def test_a_file_cut_off_anywhere_is_named_so(tmp_path: Path) -> None:
    whole = model(tmp_path / "tiny.gguf").read_bytes()
    for length in (*range(0, 2000, 7), len(whole) - 1):
        with pytest.raises(Broken, match=r"cut off|ends at|too short"):
            gguf.parse(whole[:length], length)


def test_a_header_behind_the_first_step_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path / "tiny.gguf")
    whole = gguf.read(str(path))
    monkeypatch.setattr(gguf, "STEPS", (100, 1000, 1 << 20))
    assert gguf.read(str(path)) == whole

    monkeypatch.setattr(gguf, "STEPS", (100, 1000))
    with pytest.raises(Broken, match="header of more than"):
        gguf.read(str(path))


def header(*pairs: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    number = len(pairs) if count is None else count
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, number) + b"".join(pairs)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


HUGE = 1 << 62
NESTED = pair(b"a", 9, struct.pack("<IQ", 9, 1) * 20 + bytes(64))
WRONG = {
    "settings": header(count=HUGE),
    "tensors": header(tensors=HUGE),
    "key": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(100),
    "text": header(pair(b"a", 8, struct.pack("<Q", HUGE))),
    "array": header(pair(b"a", 9, struct.pack("<IQ", 4, HUGE))),
    "texts": header(pair(b"a", 9, struct.pack("<IQ", 8, HUGE))),
    "arrays": header(pair(b"a", 9, struct.pack("<IQ", 9, 1 << 22) + bytes(99))),
    "nested": header(NESTED),
    "type": header(pair(b"a", 77, bytes(8))),
    "version": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "alignment": header(pair(b"general.alignment", 4, bytes(4)), bytes(99), count=1),
    "dimensions": header(
        struct.pack("<Q", 1) + b"t" + struct.pack("<I", 1 << 30) + bytes(50),
        tensors=1,
        count=0,
    ),
    "place": header(
        struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, HUGE, 0, HUGE),
        tensors=1,
        count=0,
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_no_length_is_believed(kind: str) -> None:
    """Huge counts end in an error, in no time and in no memory."""
    tracemalloc.start()
    began = time.process_time()

    try:
        with pytest.raises(Broken):
            gguf.parse(WRONG[kind], len(WRONG[kind]))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert time.process_time() - began < 1  # of this process: others may be busy
    assert most < 1024 * 1024


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (b"general.type", b"adapter", "lora"),
        (b"general.type", b"mmproj", "projector"),
        (b"general.architecture", b"clip", "projector"),
        (b"general.architecture", b"llama", "model"),
    ],
)
def test_what_is_no_model_of_its_own_says_so(
    key: bytes, value: bytes, kind: str
) -> None:
    data = header(pair(key, 8, struct.pack("<Q", len(value)) + value))

    assert gguf.parse(data, len(data))["kind"] == kind


def test_a_setting_of_the_wrong_type_is_unknown() -> None:
    data = header(
        pair(b"general.architecture", 4, struct.pack("<I", 7)),
        pair(b"general.file_type", 8, struct.pack("<Q", 2) + b"Q4"),
    )

    found = gguf.parse(data, len(data))

    assert "architecture" not in found
    assert "quantisation" not in found
    assert "parameters" not in found


@settings(
    max_examples=150,
    deadline=1000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.integers(0, 1200), junk=st.binary(min_size=1, max_size=16))
def test_damage_is_an_error_or_another_model(
    whole: bytes, at: int, junk: bytes
) -> None:
    damaged = whole[:at] + junk + whole[at + len(junk) :]

    try:
        found = gguf.parse(damaged, len(damaged))
    except Broken:
        return
    assert found["format"] == "gguf"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return model(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()
