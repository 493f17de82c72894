"""What operators ask, under /v1/admin/: what is there, what is wanted, one question."""

import re
import time
from collections.abc import Callable
from typing import Any, Literal

import anyio
from aiohttp import ClientConnectionResetError, web
from msgspec import Raw, Struct

from llmgw.control import bodies
from llmgw.control.access import Access
from llmgw.control.groups import Groups
from llmgw.control.plane import WHOLE, Plane, encoded
from llmgw.control.refusals import content, refused
from llmgw.control.sessions import Node
from llmgw.control.state import Desired, renewed
from llmgw.wire import Build, Event, Facts, Load, Problem, ReplicaStatus


class NodeView(Struct, kw_only=True, omit_defaults=True):
    """A node as an operator sees it. *state*: `unseen` is wanted and never came."""

    node_id: str
    state: Literal["live", "left", "lost", "unseen"]
    for_s: float | None = None
    session: str | None = None
    hostname: str | None = None
    mgmt_addr: str | None = None
    mgmt_interface: str | None = None
    agent: str | None = None
    labels: dict[str, str] = {}
    draining: bool = False
    rev: int | None = None
    rev_applied: int | None = None
    replicas: list[ReplicaStatus] = []
    problems: tuple[Problem, ...] = ()
    load: Load | None = None
    facts: Facts | None = None


class SessionView(Struct, kw_only=True):
    session: str
    node_id: str
    epoch: int
    lease_left_s: float
    heartbeats: int
    owner: str | None


class DesiredView(Struct, kw_only=True):
    rev: int
    source: str
    replicas: tuple[Raw, ...]
    builds: tuple[Build, ...]
    drain: bool


class EventView(Struct, kw_only=True):
    number: int
    ago_s: float
    node_id: str
    source: str
    event: Event


class AdminApi:
    def __init__(self, plane: Plane, groups: Groups, access: Access) -> None:
        self._plane = plane
        self._groups = groups
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        node = "/v1/admin/nodes/{node}"
        return [
            web.get("/v1/admin/nodes", self._for_operators(self.nodes)),
            web.get(node, self._for_operators(self.node)),
            web.get(f"{node}/replicas", self._for_operators(self.wanted)),
            web.put(f"{node}/replicas", self._for_operators(self.want)),
            web.post(f"{node}/ask", self._for_operators(self.ask)),
            web.get("/v1/admin/sessions", self._for_operators(self.sessions)),
            web.get("/v1/admin/groups", self._for_operators(self.groups)),
            web.get("/v1/admin/events", self._for_operators(self.events)),
        ]

    def _for_operators(self, handler: Any) -> Callable[[web.Request], Any]:
        async def checked(request: web.Request) -> web.StreamResponse:
            self._access.require(request)
            self._plane.require_lead()
            return await handler(request)

        return checked

    async def nodes(self, request: web.Request) -> web.Response:
        store = self._plane.store
        names = {*self._plane.sessions.nodes, *store.desired, *store.nodes}
        return encoded({"nodes": [self._view(name) for name in sorted(names)]})

    async def node(self, request: web.Request) -> web.Response:
        view = self._view(self._known(request))
        node = self._plane.sessions.nodes.get(view.node_id)
        view.facts = node.facts if node else None
        return encoded(view)

    async def wanted(self, request: web.Request) -> web.Response:
        desired = self._plane.store.desired.get(self._known(request))
        if desired is None:
            raise refused(
                "unknown_node", "nobody has said yet what is wanted on this node"
            )
        return encoded(_desired_view(desired))

    async def want(self, request: web.Request) -> web.Response:
        node_id = request.match_info["node"]
        want = bodies.want(await content(request), node_id)
        if isinstance(want, list):
            raise refused("invalid", _first(want), faults=want)

        def make(old: Desired | None) -> Desired:
            _require_unchanged(want.rev, old)
            self._plane.require_lead()
            return renewed(old, want.replicas, builds=want.builds, drain=want.drain)

        return encoded(_desired_view(await self._plane.want(node_id, make)))

    async def sessions(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        views = [
            SessionView(
                session=session.id,
                node_id=node_id,
                epoch=self._plane.epoch,
                lease_left_s=session.deadline - now,
                heartbeats=session.heartbeat.seq if session.heartbeat else 0,
                owner=session.owner,
            )
            for node_id, session in sorted(self._plane.sessions.live.items())
        ]
        return encoded({"sessions": views})

    async def groups(self, request: web.Request) -> web.Response:
        return encoded({"groups": self._groups.views()})

    async def events(self, request: web.Request) -> web.Response:
        """Those after number `after`, of `node` only if it is given; newest last."""
        after = _number(request, "after")
        only = request.query.get("node")
        now = time.monotonic()
        views = [
            EventView(
                number=one.number,
                ago_s=now - one.at,
                node_id=one.node_id,
                source=one.source,
                event=one.event,
            )
            for one in self._plane.sessions.events
            if one.number > after and only in (None, one.node_id)
        ]
        return encoded({"events": views})

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """The node's answer as it comes."""
        question = bodies.question(await content(request))
        if isinstance(question, list):
            raise refused("invalid", _first(question), faults=question)
        node_id = self._known(request)
        session = self._plane.sessions.live.get(node_id)
        if session is None:
            raise refused("unknown_node", f"{node_id} is not connected")
        number, pieces = self._plane.ask(session, question.kind, question.args)
        response = web.StreamResponse()
        response.content_type = "application/octet-stream"
        is_whole = False
        try:
            with anyio.move_on_after(question.timeout_s) as limit:
                async for piece in pieces:
                    if not response.prepared:
                        await response.prepare(request)
                    is_whole = piece == WHOLE
                    if not is_whole:
                        await response.write(piece)
        except (ClientConnectionResetError, ConnectionResetError):
            return response
        finally:
            self._plane.forget(number)
            pieces.close()
        if limit.cancelled_caught:
            what = f"has not answered within {question.timeout_s:g} s"
            return _cut(request, response, what)
        if not is_whole:
            return _cut(request, response, "hung up in the middle of its answer")
        return response

    def _known(self, request: web.Request) -> str:
        node_id = request.match_info["node"]
        plane = self._plane
        store = plane.store
        known = (plane.sessions.nodes, store.desired, store.nodes)
        if not any(node_id in one for one in known):
            raise refused("unknown_node", f"{node_id} has never been seen here")
        return node_id

    def _view(self, node_id: str) -> NodeView:
        desired = self._plane.store.desired.get(node_id)
        rev = desired.rev if desired else None
        node = self._plane.sessions.nodes.get(node_id)
        if node is None:
            return NodeView(node_id=node_id, state="unseen", rev=rev)
        session = self._plane.sessions.live.get(node_id)
        register = node.register
        view = NodeView(
            node_id=node_id,
            state=node.state,
            for_s=time.monotonic() - node.since,
            session=session.id if session else None,
            hostname=register.hostname,
            mgmt_addr=register.mgmt_addr,
            mgmt_interface=register.mgmt_interface,
            agent=register.agent.version,
            labels=register.labels,
            draining=(node.heartbeat or register).draining,
            rev=rev,
            replicas=list(node.replicas.values()),
        )
        return _with_heartbeat(view, node)


def _cut(
    request: web.Request, response: web.StreamResponse, what: str
) -> web.StreamResponse:
    if not response.prepared:
        raise refused("no_answer", f"the node {what}")
    # Half an answer is out already. Cut, it cannot be taken for a whole one.
    if request.transport:
        request.transport.abort()
    return response


def _number(request: web.Request, name: str) -> int:
    """That of the query, 0 if it is left out. As many digits as anything counts to:
    beyond some thousands Python takes none.
    """
    text = request.query.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise refused("invalid", f"{name}={text[:40]!r} is not a number")
    return int(text)


def _with_heartbeat(view: NodeView, node: Node) -> NodeView:
    if heartbeat := node.heartbeat:
        view.rev_applied = heartbeat.rev_applied
        view.problems = heartbeat.problems
        view.load = heartbeat.load
    return view


def _require_unchanged(rev: int | None, old: Desired | None) -> None:
    if old and old.source == "file":
        raise refused(
            "changed", "what is wanted on this node is written in --desired-file"
        )
    present = old.rev if old else 0
    if rev is not None and rev != present:
        raise refused("changed", f"is at rev {present} by now, not {rev}")


def _first(flaws: list[bodies.Flaw]) -> str:
    more = f" (and {len(flaws) - 1} more)" if len(flaws) > 1 else ""
    head = ": ".join(part for part in (flaws[0].where, flaws[0].what) if part)
    return head + more


def _desired_view(desired: Desired) -> DesiredView:
    return DesiredView(
        rev=desired.rev,
        source=desired.source,
        replicas=desired.replicas,
        builds=desired.builds,
        drain=desired.drain,
    )
