"""What the link remembers may be damaged; it begins anew and says why."""

import os
from pathlib import Path

import pytest

from llmgw.session.kept import NAME, WANTED, load, load_wanted
from llmgw.wire import HIGHEST_EPOCH


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    """A link that waited for its memory dialled nobody, and nobody was told."""
    os.mkfifo(tmp_path / NAME)
    os.mkfifo(tmp_path / WANTED)

    kept, why = load(tmp_path, "here")

    assert kept.epoch == 0
    assert "is not a regular file" in (why or "")
    assert load_wanted(tmp_path) is None


def test_one_without_end_is_not_read(tmp_path: Path) -> None:
    for name in (NAME, WANTED):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)

    _, why = load(tmp_path, "here")

    assert "is larger than" in (why or "")
    assert load_wanted(tmp_path) is None


def test_what_another_version_wrote_is_no_reason_to_forget_the_epoch(
    tmp_path: Path,
) -> None:
    """A stale leader would be believed, and the node be a new one to the true one."""
    newer = b'{"machine":"here","instance":"i","epoch":7,"servers":{"a":1},"x":1}'
    (tmp_path / NAME).write_bytes(newer)

    kept, why = load(tmp_path, "here")

    assert (kept.epoch, kept.instance, kept.servers, why) == (7, "i", (), None)


@pytest.mark.parametrize("epoch", ['"7"', "-1", str(HIGHEST_EPOCH + 1), "1" + "0" * 30])
def test_an_epoch_that_is_none_is_forgotten_and_that_is_said(
    tmp_path: Path, epoch: str
) -> None:
    """No control plane takes the registration of a node that has seen such a one."""
    said = f'{{"machine":"here","instance":"i","epoch":{epoch}}}'
    (tmp_path / NAME).write_text(said)

    kept, why = load(tmp_path, "here")

    assert (kept.epoch, kept.instance) == (0, "i")
    assert "epoch" in (why or "")
