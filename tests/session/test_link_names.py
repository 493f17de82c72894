"""Names that do not resolve, in a namespace with a name server of its own."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from tests.fakes.control_plane import ControlPlane
from tests.fakes.hosts import Host
from tests.fakes.linked import running
from tests.fakes.names import Names
from tests.fakes.wired import A, control_plane, node_on


@pytest.fixture
def mounts(tmp_path: Path) -> list[str]:
    """What a node is to find in /etc: this name server, and nothing to go around it."""
    found: list[str] = []
    for name, content in (
        ("resolv.conf", "nameserver 127.0.0.9\n"),
        ("nsswitch.conf", "hosts: dns\n"),
        ("hosts", ""),
    ):
        (tmp_path / name).write_text(content)
        found.append(f"--bind {tmp_path / name} /etc/{name}")
    return found


@pytest.fixture
async def names(wired: tuple[Host, Host]) -> AsyncGenerator[Names]:
    node, _ = wired
    found = Names(node.datagrams("127.0.0.9", 53))
    async with anyio.create_task_group() as group:
        await group.start(found.run)
        yield found
        group.cancel_scope.cancel()


async def test_a_name_server_that_is_dead_holds_up_no_other_server(
    tmp_path: Path, wired: tuple[Host, Host], names: Names, mounts: list[str]
) -> None:
    """T6, T36: one name is asked for in vain; the server beside it is joined."""
    node, beyond = wired
    names.silent.add("dead.example")
    one = control_plane(beyond, "10.77.0.1")
    servers = ("http://dead.example:7443", one.url)
    async with (
        running(one, limit=20),
        node_on(node, tmp_path, *servers, mounts=mounts) as mine,
    ):
        await mine.until(state="connected", server=one.url, wanted=1)
        await one.hears("heartbeat", 5)

    assert "dead.example" in names.asked
    assert len(one.heard("register")) == 1


async def test_a_name_is_resolved_anew_at_each_attempt(
    tmp_path: Path, wired: tuple[Host, Host], names: Names, mounts: list[str]
) -> None:
    """T6: unknown at first, then one address, then another."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    two = ControlPlane(host="10.77.0.2", sock=beyond.listen("10.77.0.2", one.port))
    two.replicas = [A]
    url = f"http://cp.example:{one.port}"
    async with (
        running(one, two, limit=20),
        node_on(node, tmp_path, url, mounts=mounts) as mine,
    ):
        unknown = await mine.until(state="disconnected")
        names.table["cp.example"] = ["A 10.77.0.1"]
        await mine.until(state="connected")
        await one.hears("heartbeat", 2)
        names.table["cp.example"] = ["A 10.77.0.2"]
        one.die()
        await two.hears("heartbeat", 2)

    assert "cp.example cannot be resolved" in unknown["tried"][url]


async def test_a_name_server_that_is_slow_is_waited_for(
    tmp_path: Path, wired: tuple[Host, Host], names: Names, mounts: list[str]
) -> None:
    node, beyond = wired
    names.late = 0.6  # twice the head start
    one = control_plane(beyond, "10.77.0.1")
    names.table["cp.example"] = ["A 10.77.0.1"]
    url = f"http://cp.example:{one.port}"
    async with (
        running(one, limit=20),
        node_on(node, tmp_path, url, mounts=mounts) as mine,
    ):
        await mine.until(state="connected", wanted=1)
        await one.hears("heartbeat", 2)

    assert len(one.heard("register")) == 1
