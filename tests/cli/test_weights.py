"""`llmgw weights` over a cache that was filled by fetching."""

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from tests.fakes.weights_server import WeightsServer
from tests.weights.conftest import asking, noise


def llmgw(cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", "weights", "--cache", str(cache), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
async def cache(tmp_path: Path) -> Path:
    with WeightsServer() as server:
        async with asking(tmp_path) as weights:
            for name in ("old", "new"):
                server.put(f"/{name}.gguf", name.encode() * 1000)
                url = server.url(f"/{name}.gguf")
                path = await weights.ensure(url, None, lambda _: None)
                if name == "old":
                    os.utime(path.parent / ".llmgw-used", (1e9, 1e9))
    return tmp_path


def folders(cache: Path) -> list[str]:
    found = json.loads(llmgw(cache, "--json", "list").stdout)
    return [item["folder"] for item in found["weights"]]


@pytest.mark.parametrize(
    ("name", "says"), [("nope", "there is no such folder"), ("file", "is no folder")]
)
def test_what_is_no_folder_is_no_empty_cache(
    tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "file").touch()

    ended = llmgw(tmp_path / name, "list")

    assert ended.returncode == 1
    assert f"{name}: {says}" in ended.stderr


def test_that_there_was_nothing_to_verify_is_said(tmp_path: Path) -> None:
    ended = llmgw(tmp_path, "verify")

    assert (ended.returncode, ended.stdout) == (
        0,
        f"nothing that was fetched lies in {tmp_path}\n",
    )


def test_an_empty_cache_is_said_to_be_empty(tmp_path: Path) -> None:
    assert (
        llmgw(tmp_path, "list").stdout
        == f"nothing that was fetched lies in {tmp_path}\n"
    )


async def test_the_longest_unused_is_listed_first(cache: Path) -> None:
    assert [Path(f).name for f in folders(cache)] == ["old.gguf", "new.gguf"]


async def test_what_was_changed_is_found(cache: Path) -> None:
    assert llmgw(cache, "verify").returncode == 0

    (cache / folders(cache)[0] / "old.gguf").write_bytes(b"OLD" * 1000)
    ended = llmgw(cache, "verify")

    assert ended.returncode == 1
    assert "old.gguf: is sha256:" in ended.stdout
    assert "new.gguf: right" in ended.stdout


async def test_what_is_found_damaged_is_not_served_again(tmp_path: Path) -> None:
    """verify said so, and a pull of the same source returned the bad file."""
    content = noise(3000)
    with WeightsServer() as server:
        server.put("/a.gguf", content)
        async with asking(tmp_path) as weights:
            path = await weights.ensure(server.url("/a.gguf"), None, lambda _: None)
            path.write_bytes(b"X" + content[1:])
            ended = await run_sync(llmgw, tmp_path, "verify")
            again = await weights.ensure(server.url("/a.gguf"), None, lambda _: None)

    assert ended.returncode == 1
    first, fix = ended.stdout.splitlines()
    assert first.startswith(f"{path}: is sha256:")
    assert first.endswith(f", was sha256:{sha256(content).hexdigest()}; it is removed")
    assert fix.startswith(f"  fix: `llmgw pull {server.url('/a.gguf')}`")
    assert again == path
    assert path.read_bytes() == content
    assert llmgw(tmp_path, "verify").returncode == 0


async def test_damaged_weights_that_a_process_has_open_stay(cache: Path) -> None:
    path = cache / folders(cache)[0] / "old.gguf"
    path.write_bytes(b"OLD" * 1000)
    with path.open("rb"):
        ended = llmgw(cache, "verify")

    assert ended.returncode == 1
    assert "it stays, as a process has it open\n  fix: stop the replica" in ended.stdout
    assert path.exists()
    assert llmgw(cache, "verify").returncode == 1


async def test_what_is_pinned_stays_until_it_is_not(cache: Path) -> None:
    old, new = folders(cache)
    llmgw(cache, "pin", old)

    refused = llmgw(cache, "evict", old)
    assert refused.returncode == 1
    assert "is pinned" in refused.stderr

    llmgw(cache, "unpin", old)
    assert llmgw(cache, "evict", old).returncode == 0
    assert folders(cache) == [new]
    assert not (cache / old).exists()


async def test_what_a_process_has_open_stays(cache: Path) -> None:
    old = folders(cache)[0]
    with (cache / old / "old.gguf").open("rb"):
        refused = llmgw(cache, "evict", old)

    assert refused.returncode == 1
    assert "a process has it open" in refused.stderr
    assert (cache / old / "old.gguf").exists()


async def test_what_cannot_be_changed_is_said_and_no_bug(cache: Path) -> None:
    old = folders(cache)[0]
    (cache / old / ".llmgw-pinned").mkdir()

    refused = llmgw(cache, "unpin", old)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{cache / old}/.llmgw-pinned: cannot be changed")


async def test_a_file_that_is_shorter_or_gone_is_found(cache: Path) -> None:
    old, new = folders(cache)
    (cache / old / "old.gguf").write_bytes(b"old")
    (cache / new / "new.gguf").unlink()

    ended = llmgw(cache, "--json", "verify")

    said = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert said["verified"] == 2
    assert [one["what"] for one in said["wrong"]] == [
        "is 3 bytes long, 3000 were published",
        "cannot be read: No such file or directory",
    ]


async def test_one_that_is_named_is_verified_and_no_other(cache: Path) -> None:
    old, new = folders(cache)
    (cache / old / "old.gguf").unlink()

    assert llmgw(cache, "verify", new).returncode == 0
    assert llmgw(cache, "verify", new, old).returncode == 1


async def test_of_several_names_one_that_means_nothing_stops_all(cache: Path) -> None:
    old, _ = folders(cache)

    assert llmgw(cache, "evict", old, "none").returncode == 1
    assert old in folders(cache)


async def test_a_name_that_means_nothing_is_said_to(cache: Path) -> None:
    ended = llmgw(cache, "evict", "../../etc")

    assert ended.returncode == 1
    assert "no such weights" in ended.stderr
