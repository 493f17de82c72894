"""How a session begins: dial, say who and what is here, be accepted."""

import anyio
import anyio.to_thread
from msgspec import Struct

from llmgw.session import route, rules
from llmgw.session.address import plain
from llmgw.session.dial import Dialer
from llmgw.session.http import Connection, within
from llmgw.session.memory import Memory
from llmgw.session.node import Identity, Node
from llmgw.wire import AgentInfo, Register, Registered

REGISTER_LIMIT = 5.0


class Opened(Struct, frozen=True):
    """A registration that was accepted, and the connection it came over."""

    server: str
    connection: Connection
    registered: Registered
    said: Register
    way: route.Way


class Registrar:
    """Asks one control plane at a time to take this node."""

    def __init__(
        self, identity: Identity, node: Node, memory: Memory, dialer: Dialer
    ) -> None:
        self._identity = identity
        self._node = node
        self._memory = memory
        self._dialer = dialer

    async def open(self, server: str) -> Opened:
        """Unreachable or Refused if it does not, or is no leader to follow."""
        connection = await self._dialer.dial(server)
        try:
            return await self._register(server, connection)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await connection.aclose()
            raise

    async def _register(self, server: str, connection: Connection) -> Opened:
        # Before it is told: what changes from now on is a change.
        way = await route.source(connection.peer, self._node.interface)
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
