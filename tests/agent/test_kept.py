"""What the agent keeps survives it; what it cannot read does not stop it."""

import os
from pathlib import Path

import pytest

from llmgw.agent.kept import Drain, held, read, write
from llmgw.errors import LlmgwError


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write(tmp_path / "drain.json", Drain(stop_after=60.0))

    assert read(tmp_path / "drain.json", Drain) == Drain(stop_after=60.0)


def test_none_removes(tmp_path: Path) -> None:
    write(tmp_path / "drain.json", Drain(stop_after=60.0))
    write(tmp_path / "drain.json", None)

    assert read(tmp_path / "drain.json", Drain) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff", b"[]"])
def test_garbage_is_put_aside_and_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "drain.json").write_bytes(content)

    assert read(tmp_path / "drain.json", Drain) is None
    assert (tmp_path / "drain.json.unreadable").read_bytes() == content


@pytest.mark.parametrize(
    ("content", "drain"),
    [
        (b'{"stop_after":1e10}', Drain()),
        (b'{"stop_after":{"after_s":60}}', Drain()),
        (b'{"stop_after":60,"reason":"repair"}', Drain(stop_after=60)),
    ],
)
def test_a_drain_that_another_version_wrote_is_one(
    tmp_path: Path, content: bytes, drain: Drain
) -> None:
    """One of 1e10 s, as earlier versions wrote it, was put aside, and the node that a
    person had drained started all that was wanted.
    """
    path = tmp_path / "drain.json"
    path.write_bytes(content)

    assert read(path, Drain) == drain
    assert path.read_bytes() == content


def test_a_full_disk_keeps_what_was_kept(tmp_path: Path) -> None:
    """/dev/full takes no byte, as a full disk does."""
    path = tmp_path / "drain.json"
    write(path, Drain(stop_after=1.0))
    (tmp_path / "drain.json.new").symlink_to("/dev/full")

    with pytest.raises(LlmgwError, match="No space left on device"):
        write(path, Drain(stop_after=2.0))

    assert read(path, Drain) == Drain(stop_after=1.0)


def test_two_agents_do_not_share_a_state_directory(tmp_path: Path) -> None:
    with (
        held(tmp_path / "new"),
        pytest.raises(LlmgwError, match="another agent uses"),
        held(tmp_path / "new"),
    ):
        pass

    with held(tmp_path / "new"):
        pass


def test_a_state_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with (
        pytest.raises(LlmgwError, match="cannot be written") as caught,
        held(tmp_path / "file/state"),
    ):
        pass

    assert "state_dir" in caught.value.fix
    assert os.path.isfile(tmp_path / "file")  # noqa: PTH113 -- nothing was lost


def test_a_fifo_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    """An agent waited for a writer before its first engine was adopted."""
    os.mkfifo(tmp_path / "drain.json")

    assert read(tmp_path / "drain.json", Drain) is None
    assert (tmp_path / "drain.json.unreadable").is_fifo()
