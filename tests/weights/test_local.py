"""Models on disk: each counted once, only when whole, and not read twice."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmgw.weights import gguf
from llmgw.weights.local import survey
from tests.weights.test_gguf import model
from tests.weights.test_safetensors import tensors


def paths(folder: Path, found: list[dict[str, Any]]) -> list[str]:
    return [str(Path(one["path"]).relative_to(folder)) for one in found]


def aged(folder: Path) -> None:
    """As if nothing had been changed for a while."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)


def test_loops_links_and_spellings_count_once(tmp_path: Path) -> None:
    """T80: the same folder in two spellings, and by a link, is one."""
    one = model(tmp_path / "a.gguf")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "b.gguf").hardlink_to(one)
    (tmp_path / "nowhere.gguf").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.gguf")
    spelled = tmp_path.parent / "spelled"
    spelled.unlink(missing_ok=True)
    spelled.symlink_to(tmp_path)

    found = survey([f"{tmp_path}/", str(tmp_path), str(spelled)])

    assert paths(tmp_path, found.value) == ["a.gguf"]
    assert found.value[0]["also"] == [f"{tmp_path}/b.gguf"]
    assert found.value[0]["size"] == one.stat().st_size
    assert found.troubles == []


def test_links_in_a_circle_hide_nothing(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    (tmp_path / "one.gguf").symlink_to("two")
    (tmp_path / "two").symlink_to("one.gguf")

    found = survey([str(tmp_path)])

    assert paths(tmp_path, found.value) == ["a.gguf"]
    assert found.troubles == []


def test_a_folder_that_is_called_as_a_file_is_a_folder(tmp_path: Path) -> None:
    """What is fetched from an address lies in a folder named for the end of it."""
    (tmp_path / "http/host/q.gguf").mkdir(parents=True)
    model(tmp_path / "http/host/q.gguf/q.gguf")

    found = survey([str(tmp_path)])

    assert paths(tmp_path, found.value) == ["http/host/q.gguf/q.gguf"]


def test_shards_count_when_all_are_there(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        model(tmp_path / f"big-0000{number}-of-00003.gguf")
    found = survey([str(tmp_path)])
    assert paths(tmp_path, found.value) == ["big-00001-of-00003.gguf"]
    assert found.value[0]["shards"] == 3
    assert found.value[0]["parameters"] == 3 * (300 * 8 + 64 * 8)

    (tmp_path / "big-00002-of-00003.gguf").unlink()
    found = survey([str(tmp_path)])
    assert found.value == []
    assert found.troubles == [
        (
            "model_unusable",
            "1 of 3 shards are not there",
            f"{tmp_path}/big-00001-of-00003.gguf",
        )
    ]


def test_what_is_being_fetched_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / ".llmgw-partial").mkdir()
    model(tmp_path / ".llmgw-partial/a.gguf")
    model(tmp_path / "b.gguf").rename(tmp_path / "b.gguf.part")
    assert survey([str(tmp_path)]).value == []


def test_a_half_file_is_a_trouble_with_its_name(tmp_path: Path) -> None:
    path = model(tmp_path / "half.gguf")
    path.write_bytes(path.read_bytes()[:-100])

    found = survey([str(tmp_path)])

    assert found.value == []
    ((code, what, where),) = found.troubles
    assert (code, where) == ("model_unusable", str(path))
    assert "cut off" in what


def test_a_hub_cache_is_read_through_its_links(tmp_path: Path) -> None:
    home = tmp_path / "models--org--name"
    (home / "blobs").mkdir(parents=True)
    (home / "snapshots/rev").mkdir(parents=True)
    tensors(home / "blobs/abc", {"a": [2, 3]})
    (home / "blobs/def").write_text(json.dumps({"architectures": ["X"]}))
    (home / "snapshots/rev/model.safetensors").symlink_to("../../blobs/abc")
    (home / "snapshots/rev/config.json").symlink_to("../../blobs/def")

    found = survey([str(tmp_path)])

    assert paths(home, found.value) == ["snapshots/rev"]
    assert found.value[0]["architecture"] == "X"


def test_a_digest_that_was_checked_is_told(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    marker = {"files": {"a.gguf": {"size": 1, "sha256": "ab" * 32}}}
    (tmp_path / "llmgw-complete.json").write_text(json.dumps(marker))
    assert survey([str(tmp_path)]).value[0]["digest"] == "sha256:" + "ab" * 32


def test_what_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    model(tmp_path / "deep/a.gguf")
    aged(tmp_path)
    first = survey([str(tmp_path)])
    memory = json.loads(json.dumps(first.memory))
    monkeypatch.setattr(gguf, "read", _never)
    monkeypatch.setattr(os, "scandir", _never)

    again = survey([str(tmp_path)], memory)

    assert again.value == first.value
    assert again.memory == first.memory


def _never(*_: Any) -> Any:
    raise AssertionError("looked at again")


def test_what_has_changed_is_read_again(tmp_path: Path) -> None:
    path = model(tmp_path / "a.gguf")
    aged(tmp_path)
    first = survey([str(tmp_path)])
    # In place, so that the folder's own time stays.
    path.write_bytes(path.read_bytes()[:-100])
    changed = survey([str(tmp_path)], first.memory)
    assert changed.value == []

    shutil.copy(model(tmp_path.parent / "b.gguf"), tmp_path / "b.gguf")
    assert paths(tmp_path, survey([str(tmp_path)], changed.memory).value) == ["b.gguf"]


def test_a_folder_changed_just_now_is_not_believed_to_stay(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    assert survey([str(tmp_path)]).memory["folders"] == {}
