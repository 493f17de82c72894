"""The state directory as a crash, a person or another version left it."""

import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.control.leader import next_epoch
from llmgw.control.settings import Settings, checked
from llmgw.control.state import Files
from llmgw.errors import ConfigError, LlmgwError
from llmgw.wire import HIGHEST_EPOCH
from tests.control.asking import refusal
from tests.control.conftest import Serving

A = b'{"id":"a","engine":"command","generation":1}'
DAMAGED = {
    "empty": b"",
    "cut": b'{"rev":1',
    "no text": b"\xff\xfe",
    "deep": b'{"x":' + b"[" * 200_000,
    "no object": b'{"replicas":[7],"rev":1}',
    "no id": b'{"replicas":[{"engine":"command","generation":1}],"rev":1}',
    "no generation": b'{"replicas":[{"id":"a","engine":"command"}],"rev":1}',
    "a group of none": b'{"replicas":[%s],"rev":1}' % (A[:-1] + b',"group":{}}'),
    "a group of text": b'{"replicas":[%s],"rev":1}' % (A[:-1] + b',"group":"g"}'),
}


async def loaded(state_dir: Path, content: bytes) -> Files:
    file = state_dir / "desired" / "n1.json"
    await anyio.to_thread.run_sync(lambda: file.parent.mkdir(parents=True))
    await anyio.to_thread.run_sync(file.write_bytes, content)
    files = Files(state_dir)
    await files.load(1)
    return files


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
async def test_what_is_no_desired_state_is_named_and_nothing_is_led(
    tmp_path: Path, content: bytes
) -> None:
    """Without it the next change would stop what the node has."""
    with pytest.raises(LlmgwError, match="is not a node's desired state") as caught:
        await loaded(tmp_path, content)

    assert caught.value.where == str(tmp_path / "desired" / "n1.json")
    assert caught.value.fix


async def test_an_older_and_a_newer_version_are_read(tmp_path: Path) -> None:
    older = b'{"replicas":[%s],"rev":3}' % A
    newer = b'{"replicas":[%s],"rev":3,"later":{"x":[1]}}' % (
        A[:-1] + b',"later":1,"group":{"id":"g","rank":0,"size":1,"later":2}}'
    )
    one = await loaded(tmp_path / "one", older)
    two = await loaded(tmp_path / "two", newer)

    assert [bytes(raw) for raw in one.desired["n1"].replicas] == [A]
    assert one.desired["n1"].rev == two.desired["n1"].rev == 3
    assert b'"later":1' in bytes(two.desired["n1"].replicas[0])


@pytest.mark.parametrize(
    "content",
    [b"", b"abc\n", b"\xff", b"-5\n", b"1.5", b"9" * 5000, b"%d" % HIGHEST_EPOCH],
    ids=["empty", "text", "bytes", "below", "half", "long", "the last"],
)
def test_a_counter_that_is_none_is_named_and_stays(
    tmp_path: Path, content: bytes
) -> None:
    """Whoever begins at 1 again is refused by every node."""
    counter = tmp_path / "epoch"
    counter.write_bytes(content)

    with pytest.raises(LlmgwError, match="is not the number of an epoch") as caught:
        next_epoch(counter, 0)
    assert caught.value.where == str(counter)
    assert len(caught.value.what) < 100
    assert counter.read_bytes() == content


def test_a_counter_counts(tmp_path: Path) -> None:
    counter = tmp_path / "epoch"

    assert [next_epoch(counter, 0), next_epoch(counter, 0)] == [1, 2]
    assert next_epoch(counter, 10) == 10
    assert next_epoch(counter, 5) == 11


def test_a_fifo_in_the_place_of_a_file_holds_up_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "epoch")

    with pytest.raises(LlmgwError, match="is not a regular file"):
        next_epoch(tmp_path / "epoch", 0)


@pytest.mark.parametrize("floor", [-1, HIGHEST_EPOCH, 10**30])
def test_a_floor_that_no_node_could_follow_is_refused(
    tmp_path: Path, floor: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(Settings(listen=":0", state_dir=tmp_path, epoch_floor=floor))

    assert [fault.key for fault in caught.value.faults] == ["--epoch-floor"]


@pytest.mark.parametrize("name", ["a" * 120, "file", "none/sock"])
async def test_an_admin_socket_that_cannot_be_is_named(
    serving: Serving, tmp_path: Path, name: str
) -> None:
    """Too long for the kernel, another thing's place, or in no folder."""
    path = tmp_path / name
    await anyio.to_thread.run_sync((tmp_path / "file").write_text, "x")

    with pytest.raises(ExceptionGroup) as caught:
        async with serving(admin_socket=path):
            pass

    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LlmgwError)
    assert "cannot listen" in error.what
    assert error.where == str(path)
    assert "--admin-socket" in error.fix


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync((tmp_path / "desired").write_text, "a file")

    with pytest.raises(LlmgwError, match="cannot be made") as caught:
        await Files(tmp_path).load(1)
    assert caught.value.where == str(tmp_path / "desired")


async def test_what_cannot_be_kept_is_refused_and_not_wanted(
    serving: Serving, tmp_path: Path
) -> None:
    """A folder where the file is written stands for a disk that takes nothing."""
    block = tmp_path / "cp" / "desired" / "n1.json.new"
    async with serving(state_dir=tmp_path / "cp") as plane:
        await plane.want("n1", {"id": "a", "engine": "command"})
        before = (await plane.admin("GET", "nodes/n1/replicas")).json()
        await anyio.to_thread.run_sync(block.mkdir)
        full = await plane.admin("PUT", "nodes/n1/replicas", {"replicas": []})
        during = (await plane.admin("GET", "nodes/n1/replicas")).json()
        await anyio.to_thread.run_sync(block.rmdir)
        again = await plane.admin("PUT", "nodes/n1/replicas", {"replicas": []})

    assert refusal(full) == (503, "busy")
    assert during == before
    assert (again.status_code, again.json()["rev"]) == (200, 2)
