"""Links for a bench, each with an engine that notices if anybody would stop it."""

import os
import signal
from pathlib import Path

import anyio.abc

from llmgw.config import keys
from llmgw.config.keys import Tls
from llmgw.session.link import Link
from llmgw.session.node import Identity
from llmgw.tls import Certificates
from tests.fakes.node import FakeNode


def tls(pki: Path, name: str = "n1") -> Tls:
    """The files of an agent, as they were issued."""
    return Tls(
        cert_file=str(pki / f"{name}.crt"),
        key_file=str(pki / f"{name}.key"),
        ca_file=str(pki / "ca.crt"),
    )


def link(
    name: str,
    servers: tuple[str, ...],
    files: Tls | None,
    folder: Path,
    *,
    engine: int,
    base: float = 1.0,
) -> Link:
    node = FakeNode()
    node.runs("a", pid=engine)
    return Link(
        Identity(node_id=name, version="bench", mgmt_addr="127.0.0.1"),
        servers,
        Certificates(files, "n1") if files else None,
        keys.Link(fail_back_interval=0.0),
        node,
        folder / name,
        heartbeat=5.0,
        reconnect_base=base,
        reconnect_max=30.0,
    )


async def live(link: Link, engine: int, group: anyio.abc.TaskGroup) -> None:
    """Runs the link, and stops the engine where an agent would."""
    group.start_soon(link.run)
    number = -1
    while True:
        number, desired = await link.desired.newer_than(number)
        if desired and "a" not in [item.replica.id for item in desired.wanted]:
            os.kill(engine, signal.SIGTERM)
