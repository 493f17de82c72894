"""What agents ask: docs/protocol.md, request by request."""

import logging
from functools import partial
from typing import TypeVar

import anyio
import msgspec
from aiohttp import ClientConnectionResetError, web

from llmgw.control.bodies import misnamed
from llmgw.control.plane import WHOLE, Plane, caller, encoded
from llmgw.control.refusals import content, refusal, refused, too_many
from llmgw.control.sessions import Session
from llmgw.control.settings import joined
from llmgw.wire import (
    PROTOCOL,
    UNDECODABLE,
    Event,
    Facts,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Leader,
    Ping,
    Probe,
    Probed,
    Refusal,
    Register,
    Registered,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

# How long the control plane knocks at a node's own port before it calls it closed.
KNOCK = 3.0


class NodeApi:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._registering = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/register", self.register),
            web.get("/v1/desired", self.desired, allow_head=False),
            web.post("/v1/heartbeat", self.heartbeat),
            web.put("/v1/facts", self.facts),
            web.post("/v1/events", self.events),
            web.post("/v1/answers/{id}", self.answer),
            web.post("/v1/goodbye", self.goodbye),
            web.post("/v1/probe", self.probe),
            web.get("/v1/leader", self.leader),
        ]

    async def register(self, request: web.Request) -> web.Response:
        plane = self._plane
        plane.require_lead()
        limit = plane.settings.register_limit_s
        if self._registering >= plane.settings.register_most:
            raise too_many("as many nodes register as can be at a time", limit / 5)
        self._registering += 1
        try:
            with anyio.fail_after(limit):
                return await self._register(request)
        except TimeoutError as error:
            # The agent has given up, and goes elsewhere.
            what = f"the registration took longer than {limit:g} s"
            raise refused("busy", what, retry_after_s=limit / 5) from error
        finally:
            self._registering -= 1

    async def _register(self, request: web.Request) -> web.Response:
        plane = self._plane
        register = await body(request, Register)
        if PROTOCOL not in register.protocol:
            spoken = ", ".join(map(str, register.protocol)) or "none"
            raise refused(
                "protocol",
                f"the agent speaks version {spoken}; this control plane speaks 1",
                accepts=[PROTOCOL],
            )
        if flaw := misnamed(register.node_id):
            raise refused("malformed", f"node_id: {flaw.what}")
        owner = caller(request)
        if owner not in (None, register.node_id):
            raise refused(
                "identity_mismatch",
                f"node_id is {register.node_id}, the certificate is for {owner}",
            )
        # Again: reading the body took its time, and a lease may have ended.
        plane.require_lead()
        plane.require_epoch(register.epoch_seen)
        session = plane.sessions.open(register, owner)
        if isinstance(session, Refusal):
            raise refusal(session)
        is_open = False
        try:
            await plane.store.opened(register, plane.epoch)
            plane.require_lead()
            is_open = True
        finally:
            # If the lead was lost meanwhile, it has ended with all the others.
            if not is_open and not session.is_over:
                plane.sessions.leave(session, "not accepted", "left_running")
        settings = plane.settings
        return encoded(
            Registered(
                session=session.id,
                epoch=plane.epoch,
                heartbeat_s=settings.heartbeat_s,
                lease_s=settings.lease_s,
                servers=settings.servers or None,
            )
        )

    async def desired(self, request: web.Request) -> web.StreamResponse:
        session = self._session_of(request)
        response = web.StreamResponse()
        response.content_type = "application/x-ndjson"
        await response.prepare(request)
        session.is_heard = partial(_is_there, request)
        try:
            await self._stream(session, response)
        except (ClientConnectionResetError, ConnectionResetError):
            log.debug("stream closed by the agent node=%s", session.node_id)
        return response

    async def _stream(self, session: Session, response: web.StreamResponse) -> None:
        plane = self._plane
        said: int | None = None
        seen = -1
        while not session.is_over:
            for ask in session.asked():
                await self._say(response, ask)
            wanted = plane.store.desired.get(session.node_id)
            # A node of which nobody has said anything gets no snapshot: an empty one
            # from a control plane that lost its disk would stop the whole fleet.
            if wanted and wanted.rev != said and plane.is_leading():
                await self._say(response, wanted.snapshot(plane.epoch))
                said = wanted.rev
            with anyio.move_on_after(plane.settings.heartbeat_s * 0.8) as quiet:
                seen, _ = await session.changed.newer_than(seen)
            if quiet.cancelled_caught:
                await self._say(response, Ping())
        if session.bye:
            await self._say(response, session.bye)

    async def _say(self, response: web.StreamResponse, line: msgspec.Struct) -> None:
        # An agent that reads nothing for a whole lease has lost its session anyway.
        with anyio.move_on_after(self._plane.settings.lease_s) as limit:
            await response.write(msgspec.json.encode(line) + b"\n")
        if limit.cancelled_caught:
            raise ClientConnectionResetError("the agent reads nothing")

    async def heartbeat(self, request: web.Request) -> web.Response:
        plane = self._plane
        heartbeat = await body(request, Heartbeat)
        session = plane.session(heartbeat.session, caller(request))
        plane.require_epoch(heartbeat.epoch)
        want = plane.sessions.beat(session, heartbeat)
        wanted = plane.store.desired.get(session.node_id)
        return encoded(
            HeartbeatAck(epoch=plane.epoch, rev=wanted.rev if wanted else 0, want=want)
        )

    async def facts(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        self._plane.sessions.take_facts(session, await body(request, Facts))
        return web.Response(status=204)

    async def events(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        self._plane.sessions.take_events(
            session, await body(request, tuple[Event, ...])
        )
        return web.Response(status=204)

    async def answer(self, request: web.Request) -> web.Response:
        self._session_of(request)
        asker = self._plane.answering(request.match_info["id"])
        if asker is None:
            # Whoever asked has left. The agent did nothing wrong, and a refusal
            # would count against this control plane.
            return web.Response(status=204)
        async with asker:
            try:
                async for piece in request.content.iter_any():
                    await asker.send(piece)
                await asker.send(WHOLE)
            except anyio.BrokenResourceError:
                log.debug("nobody waits for the rest of an answer")
            except (ConnectionError, web.RequestPayloadError) as error:
                log.debug("an answer ends in its middle error=%s", error)
        return web.Response(status=204)

    async def goodbye(self, request: web.Request) -> web.Response:
        said = await body(request, Goodbye)
        session = self._plane.session(said.session, caller(request))
        self._plane.sessions.leave(session, said.reason, said.engines)
        return web.Response(status=204)

    async def probe(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        probe = await body(request, Probe)
        assert request.transport is not None, "the request was read a moment ago"
        peer = request.transport.get_extra_info("peername")
        mine = {session.register.mgmt_addr, peer[0] if peer else None} - {None}
        if probe.address not in mine:
            # Else any node could have the control plane knock at any other's ports.
            named = " or ".join(sorted(str(address) for address in mine))
            return encoded(
                Probed(
                    reachable=False,
                    reason=f"{probe.address} is not this node's address, {named}",
                )
            )
        return encoded(await _knock(probe.address, probe.port))

    async def leader(self, request: web.Request) -> web.Response:
        lead = self._plane.role.lead.value
        is_leader = self._plane.is_leading()
        return encoded(Leader(leader=is_leader, epoch=lead.epoch, url=lead.url))

    def _session_of(self, request: web.Request) -> Session:
        return self._plane.session(request.query.get("session", ""), caller(request))


def _is_there(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


async def body(request: web.Request, kind: type[T]) -> T:
    """The body of *request* as *kind*; raises the refusal that says what is off."""
    try:
        return msgspec.json.decode(await content(request), type=kind)
    except UNDECODABLE as error:
        raise refused("malformed", str(error)) from error


async def _knock(address: str, port: int) -> Probed:
    if not 1 <= port <= 65535:
        return Probed(reachable=False, reason=f"{port} is no port")
    try:
        with anyio.fail_after(KNOCK):
            stream = await anyio.connect_tcp(address, port)
        await stream.aclose()
    except TimeoutError:
        return Probed(reachable=False, reason=f"no answer within {KNOCK:g} s")
    except (OSError, UnicodeError) as error:  # a name of labels too long, say
        reason = f"{joined(address, port)}: {error}"
        return Probed(reachable=False, reason=reason)
    return Probed(reachable=True)
