"""Two reasons to leave a session that works: another own address, an earlier leader."""

from collections.abc import Callable
from typing import NoReturn

import anyio

from llmgw.backoff import jittered
from llmgw.config.address import masked
from llmgw.errors import Refused, SessionError
from llmgw.session import route, rules
from llmgw.session.dial import Dialer
from llmgw.session.http import within
from llmgw.session.memory import Memory
from llmgw.session.node import Node
from llmgw.session.register import Opened
from llmgw.wire import Leader

# Readings in a row, one a heartbeat, before another own address is believed.
STABLE = 3
LEADER_LIMIT = 5.0


async def address(opened: Opened, node: Node, every: Callable[[], float]) -> NoReturn:
    """Told by registering again, once it is seen to stay."""
    was = candidate = opened.way
    readings = 0
    while True:
        await anyio.sleep(every())
        now = await route.source(opened.connection.peer, node.interface)
        readings = readings + 1 if now == candidate else 1
        candidate = now
        if None not in now and now != was and readings >= STABLE:
            raise SessionError(
                f"this node is now {now[0]} on {now[1]}, was {was[0]} on {was[1]}",
                where=opened.connection.where,
            )


async def earlier(
    opened: Opened,
    dialer: Dialer,
    memory: Memory,
    interval: float,
    dice: Callable[[], float],
) -> NoReturn:
    """Whether a server that stands before this one in the list leads again."""
    while True:
        await anyio.sleep(jittered(interval, dice()))
        for server in rules.earlier(memory.servers, opened.server):
            if await _leads(server, dialer, memory):
                raise Refused(
                    f"{masked(server)} leads again and stands before it",
                    where=opened.connection.where,
                    code="fail_back",
                    leader=server,
                )


async def _leads(server: str, dialer: Dialer, memory: Memory) -> bool:
    try:
        connection = await dialer.dial(server)
    except SessionError:
        return False
    try:
        with within(LEADER_LIMIT, "/v1/leader", connection.where):
            said = await connection.ask("GET", "/v1/leader", None, Leader)
    except SessionError:
        return False
    else:
        return said.leader and rules.may_lead(said.epoch, memory.epoch)
    finally:
        with anyio.CancelScope(shield=True):
            await connection.aclose()
