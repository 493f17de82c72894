"""Rules 3.1 to 3.7 of the protocol, played against the link by a scripted server."""

from pathlib import Path

import anyio
import pytest

from llmgw.config import keys
from llmgw.session.link import Link
from tests.fakes.control_plane import (
    ControlPlane,
    Handler,
    close,
    hang,
    raw,
    refuse,
    reset,
)
from tests.fakes.linked import BEAT, connected, link, running, until, wanted
from tests.fakes.node import FakeNode

A = {"id": "a", "generation": 1, "engine": "command"}
B = {"id": "b", "generation": 1, "engine": "command"}


def ids(mine: Link) -> list[str]:
    desired = mine.desired.value
    return [item.replica.id for item in desired.wanted] if desired else []


@pytest.mark.parametrize(
    "register",
    [
        refuse(421, "not_leader"),
        refuse(503, "busy", retry_after_s=30),
        refuse(429, "busy"),
        refuse(409, "node_in_use"),
        refuse(403, "identity_mismatch"),
        refuse(426, "protocol", accepts=[2]),
        close,
        reset,
        raw(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n"),
        raw(b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
        raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"\x15\x03\x03\x00\x02\x02\x46"),
    ],
    ids=lambda handler: getattr(handler, "__qualname__", "?").partition(".")[0],
)
async def test_whatever_is_no_yes_leads_to_the_next_at_once(
    tmp_path: Path, register: Handler
) -> None:
    """3.1 and section 2; no redirect is followed (3.11)."""
    bad, good = ControlPlane(), ControlPlane()
    bad.on["register"] = register
    async with running(bad, good):
        # A head start so long that waiting for it would be seen.
        mine = link(tmp_path, bad, good, settings=keys.Link(head_start=600.0))
        async with running(mine):
            passed = await until(mine, lambda status: bad.url in status.tried)
            await connected(mine, good)

    # It was heard, whatever it said, and not waited for until a limit.
    assert "no answer" not in passed.tried[bad.url]


async def test_the_silent_one_is_not_waited_for(tmp_path: Path) -> None:
    """3.1: 300 ms, then the next is tried beside it, which it has not given up."""
    silent, good = ControlPlane(), ControlPlane()
    silent.on["register"] = hang
    async with running(silent, good):
        began = anyio.current_time()
        mine = link(tmp_path, silent, good)
        async with running(mine):
            status = await until(
                mine,
                lambda status: (
                    status.state == "connected" or silent.url in status.tried
                ),
            )

    assert status.server == good.url
    assert len(silent.heard("register")) == 1
    assert anyio.current_time() - began >= 0.3


async def test_the_leader_dies_and_the_next_has_all_of_it(tmp_path: Path) -> None:
    """T1: with all that the heartbeat had to say, and nothing is unwanted."""
    one, two, node = ControlPlane(epoch=1), ControlPlane(epoch=2), FakeNode()
    one.replicas = two.replicas = [A]
    async with running(one, two):
        mine = link(tmp_path, one, two, node=node)
        async with running(mine):
            await wanted(mine, lambda desired: len(desired.wanted) == 1)
            await one.hears("heartbeat")
            node.runs("a", pid=7)
            one.die()
            register = await two.hears("register")
            await connected(mine, two)

            assert ids(mine) == ["a"]

    assert [replica["pid"] for replica in register.json()["replicas"]] == [7]


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"snapshot","epoch":1,"rev":2,"complete":true,"repl',
        b'{"t":"snapshot","epoch":1,"rev":2,"replicas":[]}\n',
        b'{"t":"snapshot","epoch":1,"rev":2,"complete":false,"replicas":[]}\n',
        b'{"t":"snapshot","epoch":999,"rev":2,"complete":false,"replicas":[]}\n',
        b'{"t":"snapshot","epoch":999,"rev":2,"complete":true,"replicas":[{}]}\n',
        b'{"t":"snapshot","epoch":0,"rev":2,"complete":true,"replicas":[]}\n',
        b'{"t":"snapshot","epoch":1,"rev":2,"complete":true,"replicas":[{"id":"A"}]}\n',
        b"{}\n",
        b"\xff\xfe\n",
        b"x" * 2000,
    ],
)
async def test_what_is_no_complete_snapshot_of_an_accepted_epoch_stops_nothing(
    tmp_path: Path, line: bytes
) -> None:
    """3.6, 3.7, T22."""
    one = ControlPlane(epoch=1)
    one.replicas, one.max_line = [A, B], 1000
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await wanted(mine, lambda desired: len(desired.wanted) == 2)
            await one.hears("heartbeat")
            await one.push(line)
            for stream in one.streams:  # whatever it was, it ends here
                await stream.aclose()
            again = await one.hears("register", 2)
            await connected(mine)

            assert ids(mine) == ["a", "b"]

    # Nor is its epoch one to lock out every leader below it.
    assert again.json()["epoch_seen"] == 1


async def test_an_unknown_session_registers_again(tmp_path: Path) -> None:
    """T20."""
    one = ControlPlane()
    one.replicas = [A]
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await wanted(mine, lambda desired: len(desired.wanted) == 1)
            await one.hears("heartbeat")
            one.forget()
            await one.hears("register", 2)
            again = await until(mine, lambda status: status.sessions == 2)

            assert ids(mine) == ["a"]

    assert again.session == one.sessions[-1]


async def test_a_lower_epoch_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    """3.4: the highest one is on disk."""
    new, old = ControlPlane(epoch=9), ControlPlane(epoch=8)
    async with running(new, old):
        mine = link(tmp_path, new)
        async with running(mine):
            await connected(mine)
        # One that does not look at what the node has seen.
        old.on["register"] = lambda exchange: exchange.answer(
            {"session": "x", "epoch": 8}
        )
        mine = link(tmp_path, old, new)
        async with running(mine):
            status = await connected(mine)

    assert status.server == new.url
    assert new.heard("register")[-1].json()["epoch_seen"] == 9


async def test_silence_on_the_stream_ends_the_session(tmp_path: Path) -> None:
    """3.5: three missed intervals, though heartbeats are answered."""
    one, two = ControlPlane(epoch=1), ControlPlane(epoch=1)
    one.on["desired"] = hang
    async with running(one, two):
        mine = link(tmp_path, one, two)
        async with running(mine):
            await connected(mine, one)
            one.on["register"] = hang
            lost = await until(mine, lambda status: one.url in status.tried)
            await connected(mine, two)

    assert f"no answer in {3 * BEAT:g} s (the stream)" in lost.tried[one.url]
    assert len(one.heard("heartbeat")) > 1


async def test_a_lost_heartbeat_is_sent_again_at_once_and_then_given_up(
    tmp_path: Path,
) -> None:
    """3.5: one fault is nothing, two are the end of the session."""
    one, two = ControlPlane(epoch=1), ControlPlane(epoch=1)
    async with running(one, two):
        mine = link(tmp_path, one, two)
        async with running(mine):
            await one.hears("heartbeat", 2)
            with one.told("heartbeat", close):
                lost = await one.hears("heartbeat", len(one.heard("heartbeat")) + 1)
            again = await one.hears("heartbeat", len(one.heard("heartbeat")) + 1)

            assert lost.json()["seq"] == again.json()["seq"]

            await one.hears("heartbeat", len(one.heard("heartbeat")) + 2)
            assert len(one.heard("register")) == 1

            one.on["heartbeat"] = close
            await connected(mine, two)
