"""The sessions: one per node, as long as its heartbeats come; and what they said.

Pure but for the clock it is given: it answers requests at once and waits for nothing.
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from llmgw.aio import Latest
from llmgw.wire import (
    Ask,
    Bye,
    Event,
    Facts,
    Heartbeat,
    Refusal,
    Register,
    ReplicaStatus,
)

log = logging.getLogger(__name__)

Clock = Callable[[], float]

# So many events are kept for a person to read; a flood pushes out the oldest.
EVENTS = 5000
# Questions that wait for a node to open its stream; more than a person ever asks.
QUESTIONS = 64


class Recorded(Struct, frozen=True, kw_only=True):
    """An event of a node, told by its *agent* or noticed here (*control*)."""

    number: int
    at: float
    node_id: str
    source: Literal["agent", "control"]
    event: Event


class Session:
    """One agent's hold on its node; *owner* is the name in the certificate it used."""

    def __init__(self, register: Register, owner: str | None, deadline: float) -> None:
        self.id = secrets.token_urlsafe(18)
        self.register = register
        self.owner = owner
        self.deadline = deadline
        self.heartbeat: Heartbeat | None = None
        self.replicas = {status.id: status for status in register.replicas}
        self.facts_hash = register.facts_hash
        self.changed = Latest(0)
        self.is_over = False
        self.bye: Bye | None = None
        # Whether the agent still has its stream open; taken for granted before it had.
        self.is_heard: Callable[[], bool] = lambda: True
        self._asks: deque[Ask] = deque(maxlen=QUESTIONS)

    @property
    def node_id(self) -> str:
        return self.register.node_id

    @property
    def draining(self) -> bool:
        return (self.heartbeat or self.register).draining

    def touch(self) -> None:
        """Have the stream look again at what is to be said."""
        self.changed.set(self.changed.value + 1)

    def ask(self, ask: Ask) -> None:
        self._asks.append(ask)
        self.touch()

    def asked(self) -> tuple[Ask, ...]:
        """What was asked since the last call."""
        asks = tuple(self._asks)
        self._asks.clear()
        return asks

    def end(self, bye: Bye | None) -> None:
        """End the stream too, with a *bye* if the agent does not know why."""
        self.is_over = True
        self.bye = bye
        self.touch()

    def is_same_agent(self, register: Register) -> bool:
        mine = self.register
        return (mine.instance, mine.machine_id_hash) == (
            register.instance,
            register.machine_id_hash,
        )


class Node(Struct, kw_only=True):
    """What is known of a node, with a session or since it had one."""

    node_id: str
    register: Register
    state: Literal["live", "left", "lost"]
    since: float
    facts: Facts | None = None
    replicas: dict[str, ReplicaStatus] = {}
    heartbeat: Heartbeat | None = None
    # The boots that a later one has followed. A machine never comes back to one, so
    # who registers with it is a copy of this node, state directory and all.
    past_boots: tuple[str, ...] = ()


class Sessions:
    def __init__(self, lease_s: float, now: Clock) -> None:
        self._lease_s = lease_s
        self._now = now
        self._sessions: dict[str, Session] = {}
        self._of_node: dict[str, Session] = {}
        self.nodes: dict[str, Node] = {}
        self.events: deque[Recorded] = deque(maxlen=EVENTS)
        # Counts what is heard of nodes and replicas, for whoever waits for that.
        self.news: Latest[int] = Latest(0)
        self._numbers = 0

    @property
    def live(self) -> Mapping[str, Session]:
        """By node."""
        return self._of_node

    def open(self, register: Register, owner: str | None) -> Session | Refusal:
        """A session for who registers; a Refusal while another agent has its node."""
        self.expire()
        node_id = register.node_id
        old = self._of_node.get(node_id)
        node = self.nodes.get(node_id)
        if old is not None:
            if clash := _clash(old, node, register):
                self._record(node_id, "node_in_use", clash)
                return Refusal(code="node_in_use", detail=clash)
            self._drop(old, Bye(reason="replaced"))
        session = Session(register, owner, self._now() + self._lease_s)
        self._sessions[session.id] = session
        self._of_node[node_id] = session
        self.nodes[node_id] = Node(
            node_id=node_id,
            register=register,
            state="live",
            since=self._now(),
            facts=node.facts if node else None,
            replicas=session.replicas,
            past_boots=_past_boots(node, register),
        )
        self._tell()
        how = "registered again" if old else "registered"
        self._record(node_id, "registered", f"{how} from {register.mgmt_addr}")
        log.info(
            "node %s node=%s address=%s replicas=%d",
            how,
            node_id,
            register.mgmt_addr,
            len(register.replicas),
        )
        return session

    def find(self, session_id: str) -> Session | None:
        session = self._sessions.get(session_id)
        if session is not None and session.deadline <= self._now():
            self.expire()
            return None
        return session

    def beat(self, session: Session, heartbeat: Heartbeat) -> tuple[str, ...]:
        """Take *heartbeat*; what to ask for with the acknowledgement.

        One that comes twice, or late, renews the lease and changes nothing else.
        """
        session.deadline = self._now() + self._lease_s
        last = session.heartbeat
        if last is None or heartbeat.seq > last.seq:
            session.heartbeat = heartbeat
            session.facts_hash = heartbeat.facts_hash
            session.replicas.update({one.id: one for one in heartbeat.replicas})
            self.nodes[session.node_id].heartbeat = heartbeat
            if heartbeat.replicas or last is None or last.draining != session.draining:
                self._tell()
        return ("facts",) if self._lacks_facts(session) else ()

    def _lacks_facts(self, session: Session) -> bool:
        facts = self.nodes[session.node_id].facts
        return session.facts_hash != (facts.hash if facts else "")

    def take_facts(self, session: Session, facts: Facts) -> None:
        self.nodes[session.node_id].facts = facts
        self._tell()

    def take_events(self, session: Session, events: Iterable[Event]) -> None:
        for event in events:
            self._append(session.node_id, "agent", event)

    def leave(self, session: Session, reason: str, engines: str) -> None:
        self._drop(session, None)
        self._settle(session.node_id, "left")
        self._record(session.node_id, "left", f"{reason}, engines {engines}")
        log.info(
            "node left node=%s reason=%s engines=%s", session.node_id, reason, engines
        )

    def expire(self) -> None:
        """End the sessions whose heartbeats have stayed away for the whole lease."""
        now = self._now()
        for session in [s for s in self._sessions.values() if s.deadline <= now]:
            self._drop(session, None)
            self._settle(session.node_id, "lost")
            self._record(session.node_id, "lost", "no heartbeat for the whole lease")
            log.warning(
                "node lost node=%s silent_for=%.1fs", session.node_id, self._lease_s
            )

    def next_expiry(self) -> float:
        """When `expire` may next have something to do."""
        soonest = min(
            (session.deadline for session in self._sessions.values()),
            default=self._now() + self._lease_s,
        )
        return max(soonest, self._now())

    def end_all(self, bye: Bye) -> None:
        """Leading is over: tell every agent, and know none of them any more."""
        for session in list(self._sessions.values()):
            self._drop(session, bye)
        self.nodes.clear()

    def _drop(self, session: Session, bye: Bye | None) -> None:
        del self._sessions[session.id]
        del self._of_node[session.node_id]
        session.end(bye)

    def _settle(self, node_id: str, state: Literal["left", "lost"]) -> None:
        self.nodes[node_id].state = state
        self.nodes[node_id].since = self._now()
        self._tell()

    def _tell(self) -> None:
        self.news.set(self.news.value + 1)

    def note(self, node_id: str, kind: str, text: str) -> None:
        """Something that was noticed here and that an operator should read of."""
        self._record(node_id, kind, text)

    def _record(self, node_id: str, kind: str, text: str) -> None:
        event = Event(seq=self._numbers + 1, at_s=self._now(), kind=kind, text=text)
        self._append(node_id, "control", event)

    def _append(
        self, node_id: str, source: Literal["agent", "control"], event: Event
    ) -> None:
        self._numbers += 1
        self.events.append(
            Recorded(
                number=self._numbers,
                at=self._now(),
                node_id=node_id,
                source=source,
                event=event,
            )
        )


def _clash(old: Session, node: Node | None, register: Register) -> str:
    """Why *register* is not the agent of the session it would end; "" if it is."""
    mine = old.register
    if mine.machine_id_hash != register.machine_id_hash:
        return (
            f"{register.node_id} has a live session from another machine, "
            f"{mine.hostname} at {mine.mgmt_addr}: give each its own node_id"
        )
    if not old.is_same_agent(register):
        if mine.boot_id == register.boot_id != "" and not old.is_heard():
            # Its state directory was lost with the agent that had the session: within
            # one boot of one machine, and with its stream gone, there is no other.
            return ""
        return (
            f"{register.node_id} has a live session from another state directory of "
            "this machine or of a copy of it: run one agent, or wait until the other "
            "one's lease has ended"
        )
    if node and register.boot_id in node.past_boots:
        return (
            f"{register.node_id} has a live session from a copy of this machine, "
            f"{mine.hostname} at {mine.mgmt_addr}, with the same machine id: give "
            "each its own, and its own node_id"
        )
    return ""


def _past_boots(node: Node | None, register: Register) -> tuple[str, ...]:
    if node is None or node.register.boot_id == register.boot_id:
        return node.past_boots if node else ()
    return (*node.past_boots, node.register.boot_id)[-8:]
