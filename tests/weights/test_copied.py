"""Files that an operator put there are used as they lie, and never altered."""

import hashlib
from pathlib import Path

import pytest

from llmgw.wire import Progress
from tests.fakes.weights_server import WeightsServer
from tests.weights.conftest import asking, noise


def ignore(_: Progress) -> None:
    pass


def lay(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(noise(1000, number))


@pytest.mark.parametrize(
    ("layout", "source", "answer"),
    [
        (["o/n/m.gguf"], "hf://o/n/m.gguf", "o/n/m.gguf"),
        (["o/n/m.gguf", "o/n/x.txt"], "hf://o/n/*.gguf", "o/n/m.gguf"),
        (["o/n/config.json", "o/n/m.safetensors"], "hf://o/n", "o/n"),
        (
            ["o/n/m-00001-of-00002.gguf", "o/n/m-00002-of-00002.gguf"],
            "hf://o/n/m-*",
            "o/n/m-00001-of-00002.gguf",
        ),
        (
            [f"hub/models--o--n/snapshots/{'a' * 40}/m.gguf"],
            f"hf://o/n@{'a' * 40}/m.gguf",
            f"hub/models--o--n/snapshots/{'a' * 40}/m.gguf",
        ),
    ],
)
async def test_a_copy_is_used_where_it_lies(
    tmp_path: Path, layout: list[str], source: str, answer: str
) -> None:
    lay(tmp_path / "nfs", *layout)

    async with asking(tmp_path / "cache", None, tmp_path / "nfs") as weights:
        assert await weights.ensure(source, None, ignore) == tmp_path / "nfs" / answer

    assert not list((tmp_path / "cache").rglob("*.gguf"))


async def test_one_with_another_digest_is_left_alone_and_not_used(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(5000, seed=9)
    server.put("/m.gguf", content)
    lay(tmp_path / "nfs", "m.gguf")
    before = (tmp_path / "nfs/m.gguf").read_bytes()
    digest = hashlib.sha256(content).hexdigest()

    async with asking(tmp_path / "cache", None, tmp_path / "nfs") as weights:
        path = await weights.ensure(server.url("/m.gguf"), digest, ignore)
        known = hashlib.sha256(before).hexdigest()
        same = await weights.ensure(server.url("/m.gguf"), known, ignore)

    assert path.read_bytes() == content
    assert path.is_relative_to(tmp_path / "cache")
    assert same == tmp_path / "nfs/m.gguf"
    assert same.read_bytes() == before


async def test_a_file_in_a_model_folder_is_not_copied(tmp_path: Path) -> None:
    lay(tmp_path / "nfs", "m.gguf")

    async with asking(tmp_path / "cache", None, tmp_path / "nfs") as weights:
        path = await weights.ensure(f"file://{tmp_path}/nfs/m.gguf", None, ignore)

    assert path == tmp_path / "nfs/m.gguf"


async def test_a_folder_of_this_machine_is_copied_whole(tmp_path: Path) -> None:
    lay(tmp_path / "there", "config.json", "sub/m.safetensors")

    async with asking(tmp_path / "cache") as weights:
        path = await weights.ensure(f"file://{tmp_path}/there", None, ignore)

    assert (path / "config.json").read_bytes() == noise(1000, 0)
    assert (path / "sub/m.safetensors").read_bytes() == noise(1000, 1)
