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

    entries, (bad,), _ = ledger.read()
    ledger.set_aside(bad)

    assert (entries, bad.id) == ([], "a")
    assert ledger.read() == ([], [], {})
    assert [path.name for path in ledger.folder.iterdir()] == ["a.unreadable"]


def test_a_fifo_where_a_line_is_written_holds_nobody_up(tmp_path: Path) -> None:
    """The keeper waited for a reader of it for ever, and could not be told to stop."""
    ledger, path = changed(tmp_path, {})
    (entry,), _, _ = ledger.read()
    os.mkfifo(path.with_name(".a.json.part"))

    ledger.write(msgspec.structs.replace(entry, restarts=3))

    assert ledger.read().entries[0].restarts == 3


def make(path: Path, odd: str) -> None:
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)


WHOLE = Launch(argv=("x",), ports={"api": 1}, health=Health())
CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({"version": 2}, ["version 2"]),
    ({"version": "two"}, ["version"]),
    ({"stop_after": -1}, ["stop_after"]),
    ({"restarts": {"since": 1}}, ["restarts"]),
    ({"cgroup": "/sys/fs/cgroup"}, ["cgroup"]),
    ({"cgroup": "/sys/fs/cgroup/user.slice"}, ["cgroup"]),
    ({"launch": {"argv": [], "ports": {"api": 1}}}, ["launch.argv"]),
    ({"launch": "x"}, ["launch"]),
    ({"launch": {"argv": ["x"], "stop_signal": "QUIT"}}, ["launch.stop_signal"]),
    (
        {"launch": {"argv": ["x"], "ports": {"api": 1}, "host": "?", "health": {}}},
        ["launch.health"],
    ),
    (
        {"launch": {"argv": ["x"], "ports": {"api": 99999}, "health": {}}},
        ["launch.ports", "launch.health"],
    ),
    ({"launch": {"argv": ["x"], "ports": {}, "health": {}}}, ["launch.health"]),
    (
        {
            "launch": {
                "argv": ["x"],
                "ports": {"api": 1},
                "health": {"path": "/h", "metrics_path": "\x01"},
            }
        },
        ["launch.health.metrics_path"],
    ),
]


@pytest.mark.parametrize(("change", "missed"), CHANGES, ids=str)
def test_of_a_line_that_makes_no_sense_in_part_the_rest_stands(
    tmp_path: Path, change: dict[str, Any], missed: list[str]
) -> None:
    """They ended the agent at every start; a cgroup would have been swept. Refused
    whole, they ended the engine once a leader said that it is wanted.
    """
    ledger, path = changed(tmp_path, change)

    (entry,), bad, partly = ledger.read()

    assert (entry.id, entry.digest, entry.identity.pid) == ("a", "d", 2)
    assert (entry.version, entry.is_whole) == (1, False)
    assert entry.cgroup is None or "cgroup" not in change
    assert entry.stop_after is None
    assert entry.launch.health is None or "launch.health" not in missed
    assert (bad, partly) == ([], {path: missed})


def test_what_is_not_understood_takes_nothing_beside_it_along(tmp_path: Path) -> None:
    health = {"path": "/h", "probe": {"path": "/p"}, "metrics_path": "/metrics"}
    launch = {"argv": ["x"], "ports": {"api": 1}, "health": health}
    ledger, path = changed(tmp_path, {"launch": launch, "was_ready": True})

    (entry,), _, partly = ledger.read()

    assert entry.launch == Launch(
        argv=("x",), ports={"api": 1}, health=Health(path="/h", metrics_path="/metrics")
    )
    assert entry.was_ready
    assert partly == {path: ["launch.health.probe"]}


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {"pid": 1 << 40, "started": 1, "boot": "b"}},
        {"identity": {"pid": -1, "started": 1, "boot": "b"}},
        {"identity": "2"},
        {"digest": None},
        {"id": "b"},
        {"machine": "another"},
    ],
    ids=str,
)
def test_a_line_that_tells_no_process_of_ours_is_as_one_that_cannot_be_read(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """They ended the agent at every start."""
    ledger, _ = changed(tmp_path, change)

    entries, bad, partly = ledger.read()

    assert (entries, [one.id for one in bad], partly) == ([], ["a"], {})


def changed(tmp_path: Path, change: dict[str, Any]) -> tuple[Ledger, Path]:
    """A ledger whose line of `a` was read well before the *change*."""
    ledger = Ledger(tmp_path)
    ledger.open()
    entry = Entry(
        machine=ledger.machine,
        id="a",
        generation=1,
        digest="d",
        identity=Identity(pid=2, started=1, boot="b"),
        launch=WHOLE,
        cgroup="/sys/fs/cgroup/llmgw/engine-a",
    )
    ledger.write(entry)
    assert ledger.read() == ([entry], [], {})
    path = ledger.folder / "a.json"
    path.write_bytes(
        msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **change})
    )
    return ledger, path
