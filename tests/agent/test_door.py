"""The local door answers whoever may connect, and survives whatever is said to it."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from llmgw.agent import door as doors
from llmgw.agent.door import Door, Request, ask, ask_once, default_path, once
from llmgw.errors import LlmgwError


async def hello(request: Request) -> dict[str, Any]:
    return {"hello": request["name"]}


async def refuse(_request: Request) -> dict[str, Any]:
    raise LlmgwError("is not to be had", where="x", fix="ask for y")


async def asked(path: Path, op: str, **arguments: Any) -> list[Any]:
    return await anyio.to_thread.run_sync(lambda: list(ask(path, op, **arguments)))


async def test_a_question_is_answered_and_a_fault_comes_back_as_itself(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new/agent.sock"
    async with anyio.create_task_group() as group:
        door = Door(path, {"hello": once(hello), "refuse": once(refuse)})
        await group.start(door.run)

        assert await asked(path, "hello", name="a") == [{"hello": "a"}]
        with pytest.raises(LlmgwError, match="is not to be had") as caught:
            await asked(path, "refuse")
        assert (caught.value.where, caught.value.fix) == ("x", "ask for y")
        with pytest.raises(LlmgwError, match="one of hello, refuse"):
            await asked(path, "dance")
        group.cancel_scope.cancel()

    assert not path.exists()


@pytest.mark.parametrize("said", [b"\n", b"{\n", b"[]\n", b"\xff\n", b'{"op":{}}\n'])
async def test_garbage_is_answered_and_the_door_stays_open(
    tmp_path: Path, said: bytes
) -> None:
    path = tmp_path / "agent.sock"
    async with anyio.create_task_group() as group:
        await group.start(Door(path, {"hello": once(hello)}).run)
        async with await anyio.connect_unix(path) as stream:
            await stream.send(said)
            assert b"not a request" in await stream.receive()

        assert await asked(path, "hello", name="b") == [{"hello": "b"}]
        group.cancel_scope.cancel()


async def test_a_client_that_leaves_ends_what_it_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    ended = anyio.Event()

    async def endless(_request: Request) -> AsyncIterator[int]:
        try:
            yield 1
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        await group.start(Door(path, {"endless": endless}).run)
        async with await anyio.connect_unix(path) as stream:
            await stream.send(b'{"op":"endless"}\n')
            assert await stream.receive() == b'{"value":1}\n'
        with anyio.fail_after(5):
            await ended.wait()
        group.cancel_scope.cancel()


async def test_a_dead_agents_socket_is_taken_over_and_a_living_ones_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with anyio.create_task_group() as group:
        await group.start(Door(path, {"hello": once(hello)}).run)
        with pytest.raises(LlmgwError, match="another agent answers here"):
            await Door(path, {}).run()

        assert await asked(path, "hello", name="c") == [{"hello": "c"}]
        group.cancel_scope.cancel()


def test_without_an_agent_the_client_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match="no agent answers") as caught:
        list(ask(tmp_path / "none.sock", "status"))

    assert "--socket" in caught.value.fix


def test_where_a_units_agent_is_away_root_is_not_told_to_run_one_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that one would leave in /var/lib/llmgw the unit's user cannot write."""
    monkeypatch.setattr(doors, "SYSTEM", tmp_path / "agent.sock")
    with pytest.raises(LlmgwError, match="no agent answers") as caught:
        list(ask(tmp_path / "agent.sock", "status"))

    assert "systemctl start llmgw-agent" in caught.value.fix


def test_an_agent_that_is_another_users_is_not_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`start it` was the advice, beside one that ran."""

    def shut(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doors.socket.socket, "connect", shut)  # root may open all
    with pytest.raises(LlmgwError, match="may not be opened by this user") as caught:
        list(ask(tmp_path / "agent.sock", "status"))

    assert "root" in caught.value.fix


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (b"", "ended before it answered"),
        (b'{"value": {"node_id": "n', "ended in the middle"),
        (b"<html>\n", "is no agent"),
        (b'{"value": "\xff"}\n', "is no agent"),
        (b"5\n", "is no agent"),
        (b'{"error": 5}\n', "is no agent"),
        (b'{"error": {"x": 5}}\n', "is no agent"),
        (b'{"value": %b1%b}\n' % (b"[" * 100_000, b"]" * 100_000), "is no agent"),
    ],
    ids=["nothing", "half", "html", "noise", "number", "error", "no error", "deep"],
)
async def test_no_answer_is_a_fault_and_never_a_yes(
    tmp_path: Path, said: bytes, what: str
) -> None:
    """An agent that was killed after `drain` was asked has not drained anything."""
    path = tmp_path / "agent.sock"

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            if said:
                await stream.send(said)

    async with anyio.create_task_group() as group:
        listener = await anyio.create_unix_listener(path)
        group.start_soon(listener.serve, serve)

        with pytest.raises(LlmgwError, match=what):
            await anyio.to_thread.run_sync(lambda: ask_once(path, "drain"))
        group.cancel_scope.cancel()
        await listener.aclose()


@pytest.mark.parametrize("part", [b"x", b"x" * (1 << 20)], ids=["slow", "fast"])
async def test_an_answer_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    """Whatever answers there: a byte now and then kept the command for ever."""
    monkeypatch.setattr(doors, "LARGEST_ANSWER", 1 << 22)
    path = tmp_path / "agent.sock"

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(part)
                    await anyio.sleep(0.01)

    def asked() -> None:
        list(ask(path, "status", patience=1.0))

    async with anyio.create_task_group() as group:
        listener = await anyio.create_unix_listener(path)
        group.start_soon(listener.serve, serve)

        with (
            anyio.fail_after(10),
            pytest.raises(LlmgwError, match=r"has not answered|is no agent"),
        ):
            await anyio.to_thread.run_sync(asked, abandon_on_cancel=True)
        group.cancel_scope.cancel()
        await listener.aclose()


def test_the_services_own_user_asks_at_the_systems_socket(tmp_path: Path) -> None:
    """With the agent off there is no socket to see, and the place is still that one."""
    service, system = os.geteuid() or 4242, tmp_path / "agent.sock"
    os.chown(tmp_path, service, -1)

    assert default_path({}, system, service) == system
    assert default_path({}, system, service + 1) != system
    assert default_path({}, tmp_path / "none/agent.sock", service + 1) != system
    system.touch()
    assert default_path({}, system, service + 1) == system


def test_inside_a_unit_the_socket_is_in_its_runtime_folder() -> None:
    inside = {"RUNTIME_DIRECTORY": "/run/llmgw:/run/other"}

    assert default_path(inside, user=4242) == Path("/run/llmgw/agent.sock")
