"""The way of a session: accepted, told what is wanted, telling what is."""

import gc
import socket
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from llmgw.errors import Unreachable
from llmgw.session.dial import Resolver
from tests.fakes.control_plane import ControlPlane
from tests.fakes.linked import connected, link, running, wanted
from tests.fakes.node import FakeNode

REPLICA = {"id": "a", "generation": 1, "engine": "command"}


async def test_a_node_registers_is_told_what_is_wanted_and_beats(
    tmp_path: Path,
) -> None:
    one, node = ControlPlane(epoch=7), FakeNode()
    one.replicas = [REPLICA]
    node.runs("old", pid=4711)
    async with running(one):
        mine = link(tmp_path, one, node=node)
        async with running(mine):
            desired = await wanted(mine, lambda _: True)
            register = (await one.hears("register")).json()
            first = (await one.hears("heartbeat")).json()
            second = (await one.hears("heartbeat", 2)).json()
            status = await connected(mine)

    assert [item.replica.id for item in desired.wanted] == ["a"]
    assert (desired.epoch, desired.rev, desired.kept) == (7, 1, False)
    assert register["node_id"] == "n1"
    assert register["mgmt_addr"] == "127.0.0.1"
    assert register["mgmt_interface"] == "lo"
    assert [replica["pid"] for replica in register["replicas"]] == [4711]
    assert (first["seq"], second["seq"]) == (1, 2)
    assert first["replicas"] == []  # told when it registered, and nothing is new
    assert (status.server, status.epoch) == (one.url, 7)


async def test_a_standby_and_a_dead_one_are_passed_over_in_order(
    tmp_path: Path,
) -> None:
    dead = ControlPlane()
    async with running(dead):
        pass
    standby, leader = ControlPlane(standby=True), ControlPlane()
    async with running(standby, leader):
        mine = link(tmp_path, dead, standby, leader)
        async with running(mine):
            status = await connected(mine)

    assert status.server == leader.url
    assert len(standby.heard("register")) == 1


async def test_an_address_that_is_written_out_is_not_looked_up() -> None:
    """No thread and no name server stands between the node and such a server; a zone
    is one of this machine's own names, and is looked up."""
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return [f"found {host}"]

    resolver = Resolver(lookup)
    for host in ("127.0.0.1", "10.1.2.3", "::1", "fe80::1"):
        assert await resolver.addresses(host, 1) == (host,)
    for host in ("cp1", "10.1", "fe80::1%eth0", "localhost", "1"):
        assert await resolver.addresses(host, 1) == (f"found {host}",)

    assert asked == ["cp1", "10.1", "fe80::1%eth0", "localhost", "1"]


async def given_up(fails: threading.Event) -> None:
    """One waits until the name fails, one no longer."""

    def lookup(_host: str, _port: int) -> list[str]:
        fails.wait(10)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def waits() -> None:
        with pytest.raises(Unreachable, match="cannot be resolved"):
            await resolver.addresses("cp1", 1)

    resolver = Resolver(lookup)
    with anyio.move_on_after(0.01):
        await resolver.addresses("cp1", 1)
    async with anyio.create_task_group() as group:
        group.start_soon(waits)
        await anyio.lowlevel.checkpoint()
        fails.set()


async def test_a_name_that_fails_once_nobody_waits_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who gave up waiting takes the answer from nobody else, either."""
    await given_up(threading.Event())
    gc.collect()  # what nobody asked for is told as it goes

    assert not caplog.records
