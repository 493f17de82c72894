"""Outages that last, and a machine that is busy: the link waits, and is there again."""

import socket
import threading
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute

from llmgw.session.dial import Dialer, Resolver
from tests.fakes.control_plane import ControlPlane
from tests.fakes.linked import connected, link, running, until, wanted
from tests.fakes.node import FakeNode
from tests.fakes.turned import turned

A = {"id": "a", "generation": 1, "engine": "command"}
MINUTE = 60.0


async def test_ten_minutes_without_anybody_change_nothing_and_end_by_themselves(
    tmp_path: Path,
) -> None:
    """T3, T16: every minute it is tried, nothing is unwanted, and the leader that comes
    back is joined without a restart, in a new session, with what runs.
    """
    one, node = ControlPlane(epoch=3), FakeNode()
    one.replicas = [A]
    node.runs("a", pid=7)
    with turned() as clock:
        async with running(one, limit=20 * MINUTE):
            mine = link(tmp_path, one, node=node, base=1.0, limit=30.0)
            async with running(mine, limit=20 * MINUTE):
                await wanted(mine, lambda desired: not desired.kept)
                before = await connected(mine, one)
                await one.hears("heartbeat", 2)
                number = mine.desired.number
                one.die()
                await until(mine, lambda status: status.state == "disconnected")
                shown: set[str] = set()
                for _ in range(10):
                    tried = mine.status.number
                    clock.turn(MINUTE)
                    _, status = await mine.status.newer_than(tried)
                    shown.add(status.state)
                untouched = mine.desired.number == number
                async with running(
                    again := ControlPlane(epoch=4, port=one.port), limit=20 * MINUTE
                ):
                    again.replicas = [A]
                    while not again.heard("register"):
                        clock.turn(MINUTE)
                        await anyio.sleep(0.01)
                    after = await connected(mine, again)
                    register = again.heard("register")[0].json()

    assert shown == {"disconnected"}
    assert untouched
    assert (before.sessions, after.sessions) == (1, 2)
    assert [replica["pid"] for replica in register["replicas"]] == [7]
    assert register["epoch_seen"] == 3


async def test_a_name_that_does_not_resolve_is_no_address_and_no_interface(
    tmp_path: Path,
) -> None:
    """T36: the next server gives both; what no machine has is never told."""

    def lookup(host: str, port: int) -> list[str]:
        if host == "nowhere.example":
            raise OSError(-2, "Name or service not known")
        return [host]

    class Node(FakeNode):
        def interface(self, address: str) -> str | None:
            return {"127.0.0.1": "lo"}.get(address)

    one = ControlPlane()
    async with running(one):
        servers = ("http://nowhere.example:1", one.url)
        mine = link(tmp_path, *servers, node=Node(), resolver=Resolver(lookup))
        async with running(mine):
            refused = await until(mine, lambda status: servers[0] in status.tried)
            status = await connected(mine, one)
            register = (await one.hears("register")).json()

    assert "cannot be resolved" in refused.tried[servers[0]]
    assert (status.mgmt_addr, status.mgmt_interface) == ("127.0.0.1", "lo")
    assert (register["mgmt_addr"], register["mgmt_interface"]) == ("127.0.0.1", "lo")


async def test_heartbeats_need_no_thread_that_a_slow_disk_could_hold(
    tmp_path: Path,
) -> None:
    """T19: all worker threads wait for something, and the beats come as before.

    How late they are on a machine with more to do than cores is measured by
    `python -m tests.soak.busy`.
    """
    one = ControlPlane()
    let_go = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    async with running(one), anyio.create_task_group() as group:
        mine = link(tmp_path, one)
        async with running(mine):
            await one.hears("heartbeat", 2)
            try:
                for _ in range(int(limiter.total_tokens)):
                    group.start_soon(anyio.to_thread.run_sync, let_go.wait)
                while limiter.available_tokens:
                    await anyio.sleep(0.01)
                beats = len(one.heard("heartbeat"))
                await one.hears("heartbeat", beats + 5)
            finally:
                let_go.set()

    assert len(one.heard("register")) == 1


async def test_the_kernel_is_told_to_notice_a_peer_that_is_gone() -> None:
    """3.11: what is sent and never acknowledged ends with the lease, not in hours."""
    one = ControlPlane()
    async with running(one):
        dialer = Dialer(None, limit=3.0, user_timeout=15.0)
        connection = await dialer.dial(one.url)
        raw: socket.socket = connection._stream.extra(SocketAttribute.raw_socket)  # pyright: ignore[reportPrivateUsage]
        tcp = socket.IPPROTO_TCP
        told = {
            "user_timeout": raw.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
            "keepalive": raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            "idle": raw.getsockopt(tcp, socket.TCP_KEEPIDLE),
            "interval": raw.getsockopt(tcp, socket.TCP_KEEPINTVL),
            "nodelay": raw.getsockopt(tcp, socket.TCP_NODELAY),
        }
        await connection.aclose()

    assert told == {
        "user_timeout": 15000,
        "keepalive": 1,
        "idle": 15,
        "interval": 5,
        "nodelay": 1,
    }
