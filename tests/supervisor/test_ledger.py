"""What is kept of engines may be damaged; the agent starts all the same."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe\x00", b"abc\x00", b"a=b"])
def test_a_damaged_tag_is_drawn_anew(tmp_path: Path, damaged: bytes) -> None:
    """Bytes that are no text ended every agent that started on that directory."""
    (tmp_path / "ledger-tag").write_bytes(damaged)
    ledger, again = Ledger(tmp_path), Ledger(tmp_path)

    ledger.open()
    again.open()

    assert len(ledger.tag) == 32
    assert again.tag == ledger.tag


@pytest.mark.parametrize("odd", ["fifo", "endless", "folder"])
def test_a_tag_that_is_no_file_is_named_and_holds_nobody_up(
    tmp_path: Path, odd: str
) -> None:
    """Without it nothing is started, and what has a line is adopted all the same."""
    make(tmp_path / "ledger-tag", odd)

    with pytest.raises(EngineError, match="state_dir cannot be written") as caught:
        Ledger(tmp_path).open()

    assert caught.value.where == str(tmp_path / "ledger-tag")


@pytest.mark.parametrize("odd", ["fifo", "endless", "folder"])
def test_a_line_that_is_no_file_is_set_aside(tmp_path: Path, odd: str) -> None:
    """An agent waited for the writer of a FIFO, and adopted nothing."""
    ledger = Ledger(tmp_path)
    ledger.open()
    make(ledger.folder / "a.json", odd)

    entries, (bad,) = ledger.read()
    ledger.set_aside(bad)

    assert (entries, bad.id) == ([], "a")
    assert ledger.read() == ([], [])
    assert [path.name for path in ledger.folder.iterdir()] == ["a.unreadable"]


def make(path: Path, odd: str) -> None:
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {"pid": 1 << 40, "started": 1, "boot": "b"}},
        {"identity": {"pid": -1, "started": 1, "boot": "b"}},
        {"stop_after": -1},
        {"cgroup": "/sys/fs/cgroup"},
        {"cgroup": "/sys/fs/cgroup/user.slice"},
        {"launch": {"argv": []}},
        {"launch": {"argv": ["x"], "host": "not an address"}},
        {"launch": {"argv": ["x"], "ports": {"api": 99999}, "health": {}}},
        {"launch": {"argv": ["x"], "ports": {}, "health": {}}},
        {"launch": {"argv": ["x"], "ports": {"api": 1}, "health": {"path": "\x01"}}},
    ],
    ids=str,
)
def test_a_line_that_makes_no_sense_is_as_one_that_cannot_be_read(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """They ended the agent at every start; a cgroup would have been swept."""
    ledger = Ledger(tmp_path)
    ledger.open()
    entry = Entry(
        machine=ledger.machine,
        id="a",
        generation=1,
        digest="d",
        identity=Identity(pid=2, started=1, boot="b"),
        launch=Launch(argv=("x",), ports={"api": 1}, health=Health()),
        cgroup="/sys/fs/cgroup/llmgw/engine-a",
    )
    ledger.write(entry)
    assert ledger.read() == ([entry], [])
    path = ledger.folder / "a.json"
    path.write_bytes(
        msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **change})
    )

    entries, bad = ledger.read()

    assert (entries, [one.id for one in bad]) == ([], ["a"])
