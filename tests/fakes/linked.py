"""A link and the control planes it knows, in one test."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from llmgw.config import keys
from llmgw.session.dial import Resolver
from llmgw.session.link import Link
from llmgw.session.node import Desired, Identity, LinkStatus
from llmgw.tls import Certificates
from tests.fakes.control_plane import ControlPlane
from tests.fakes.node import FakeNode

BEAT = 0.2
IDENTITY = Identity(node_id="n1", version="0.1.0")


def machine(root: Path, machine_id: str = "m1") -> Path:
    """A root folder with what tells one machine from another."""
    for path, content in (
        ("etc/machine-id", machine_id),
        ("proc/sys/kernel/random/boot_id", "b1"),
    ):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    return root


def link(
    tmp_path: Path,
    *servers: str | ControlPlane,
    node: FakeNode | None = None,
    identity: Identity = IDENTITY,
    certificates: Certificates | None = None,
    settings: keys.Link | None = None,
    heartbeat: float = BEAT,
    base: float = 0.1,
    limit: float = 0.4,
    resolver: Resolver | None = None,
    machine_id: str = "m1",
    dice: Callable[[], float] = lambda: 0.5,
) -> Link:
    return Link(
        identity,
        tuple(one if isinstance(one, str) else one.url for one in servers),
        certificates,
        settings or keys.Link(),
        node or FakeNode(),
        tmp_path / "state",
        heartbeat=heartbeat,
        reconnect_base=base,
        reconnect_max=limit,
        root=machine(tmp_path / "root", machine_id),
        resolver=resolver,
        dice=dice,
    )


@asynccontextmanager
async def running(
    *parts: ControlPlane | Link, limit: float = 10.0
) -> AsyncGenerator[anyio.abc.TaskGroup]:
    """All of them started, in order, and ended with the block."""
    with anyio.fail_after(limit):
        async with anyio.create_task_group() as group:
            for part in parts:
                await group.start(part.run)
            yield group
            group.cancel_scope.cancel()


async def until(link: Link, true: Callable[[LinkStatus], bool]) -> LinkStatus:
    number, status = await link.status.newer_than(-1)
    while not true(status):
        number, status = await link.status.newer_than(number)
    return status


async def connected(link: Link, to: ControlPlane | None = None) -> LinkStatus:
    return await until(
        link,
        lambda status: (
            status.state == "connected" and (to is None or status.server == to.url)
        ),
    )


async def wanted(link: Link, true: Callable[[Desired], bool]) -> Desired:
    number, desired = await link.desired.newer_than(-1)
    while desired is None or not true(desired):
        number, desired = await link.desired.newer_than(number)
    return desired
