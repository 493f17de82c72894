"""How a session begins: dial, say who and what is here, be accepted."""

import logging

import anyio
import anyio.to_thread
from msgspec import Struct

from llmgw.errors import Refused, SessionError, Unreachable
from llmgw.session import route, rules
from llmgw.session.address import plain
from llmgw.session.dial import Dialer
from llmgw.session.http import Connection, within
from llmgw.session.memory import Memory
from llmgw.session.node import Identity, Node
from llmgw.wire import AgentInfo, Register, Registered

log = logging.getLogger(__name__)

REGISTER_LIMIT = 5.0
# Standbys that are not asked again in so many seconds are let go.
KEPT = 5.0


class Opened(Struct, frozen=True):
    """A registration that was accepted, and the connection it came over."""

    server: str
    connection: Connection
    registered: Registered
    said: Register
    way: route.Way


class Registrar:
    """Asks control planes to take this node.

    The connection to a standby is kept for the next time it is asked: when a leader is
    lost, all nodes ask the same server twice within two seconds, and most of what that
    costs both ends is the handshake. The time after that it is dialled again: behind
    its name or a balancer another may lead by now.
    """

    def __init__(
        self, identity: Identity, node: Node, memory: Memory, dialer: Dialer
    ) -> None:
        self._identity = identity
        self._node = node
        self._memory = memory
        self._dialer = dialer
        self._standbys: dict[str, Connection] = {}

    async def open(self, server: str) -> Opened:
        """Unreachable or Refused if it does not, or is no leader to follow."""
        kept = self._standbys.pop(server, None)
        if kept is not None:
            # Whoever is silent has had his time: dialled as well, he would hold up the
            # round for longer than one who is gone.
            limit = min(REGISTER_LIMIT, self._dialer.limit)
            with within(limit, "/v1/register", kept.where):
                try:
                    return await self._ask(server, kept, again=True)
                except SessionError as error:
                    if isinstance(error, Refused) and error.code:
                        raise
                    log.debug("dialled again %s", error)
        connection = await self._dialer.dial(server)
        return await self._ask(server, connection, again=False)

    async def let_go(self) -> None:
        """Of the standbys: there is a leader, or none for longer than an election."""
        # To be cancelled in here would be to lose the leader's connection meanwhile.
        with anyio.CancelScope(shield=True):
            while self._standbys:
                _, connection = self._standbys.popitem()
                await connection.aclose()

    async def _ask(self, server: str, connection: Connection, *, again: bool) -> Opened:
        try:
            return await self._register(server, connection, again=again)
        except BaseException as error:
            if _is_standby(error) and connection.idle and not again:
                self._standbys[server] = connection
            else:
                with anyio.CancelScope(shield=True):
                    await connection.aclose()
            raise

    async def _register(
        self, server: str, connection: Connection, *, again: bool
    ) -> Opened:
        # Before it is told: what changes from now on is a change.
        way = await route.source(connection.peer, self._node.interface)
        if again and way[0] != connection.local:
            raise Unreachable("is reached in another way", where=connection.where)
        register = self._message(
            connection.local, await self._interface(connection, way)
        )
        with within(REGISTER_LIMIT, "/v1/register", connection.where):
            registered = await connection.ask(
                "POST", "/v1/register", register, Registered
            )
        if not rules.may_lead(registered.epoch, self._memory.epoch):
            # Raises: only a session that is begun is allowed to raise the epoch.
            await self._memory.accept(registered.epoch, where=connection.where)
        return Opened(server, connection, registered, register, way)

    async def _interface(self, connection: Connection, way: route.Way) -> str | None:
        if self._identity.mgmt_interface is not None:
            return self._identity.mgmt_interface
        if way[0] == connection.local:
            return way[1]
        return await anyio.to_thread.run_sync(self._node.interface, connection.local)

    def _message(self, local: str, mgmt_interface: str | None) -> Register:
        node, identity, memory = self._node, self._identity, self._memory
        return Register(
            node_id=identity.node_id,
            instance=memory.instance,
            machine_id_hash=memory.machine.id_hash,
            boot_id=memory.machine.boot_id,
            agent=AgentInfo(version=identity.version),
            hostname=node.hostname,
            mgmt_addr=identity.mgmt_addr or plain(local),
            mgmt_interface=mgmt_interface,
            labels=dict(node.labels),
            epoch_seen=memory.epoch,
            facts_hash=node.facts().hash,
            draining=node.draining,
            replicas=node.statuses(),
        )


def _is_standby(error: BaseException) -> bool:
    """One that is asked again after a wait of ours, and not after one of its own."""
    return (
        isinstance(error, Refused)
        and error.code == "not_leader"
        and error.retry_after_s is None
    )
