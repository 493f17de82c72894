"""What all requests share: who leads, who is here, what is wanted, what was asked."""

import secrets
import time
from collections.abc import Callable

import anyio
import msgspec
from aiohttp import web
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from llmgw.aio import Latest
from llmgw.control.leader import Role
from llmgw.control.refusals import refused
from llmgw.control.sessions import Session, Sessions
from llmgw.control.settings import Settings
from llmgw.control.state import Desired, Store
from llmgw.wire import Ask, Bye

# An answer goes through this many pieces at a time; the node waits for its reader.
AHEAD = 8
# Its last piece. A node that is killed in the middle ends an answer too.
WHOLE = b""


class Plane:
    def __init__(self, settings: Settings, role: Role, store: Store) -> None:
        self.settings = settings
        self.role = role
        self.store = store
        self.sessions = Sessions(settings.lease_s, time.monotonic)
        self.loaded_epoch: int | None = None
        # Counts what becomes wanted, for whoever waits for that.
        self.wanted: Latest[int] = Latest(0)
        self._writing = anyio.Lock()
        self._answers: dict[str, MemoryObjectSendStream[bytes]] = {}

    @property
    def epoch(self) -> int:
        return self.role.lead.value.epoch

    def is_leading(self) -> bool:
        """Elected, still so by the clock, and what is wanted has been read."""
        return self.role.leads() and self.loaded_epoch == self.epoch

    def require_lead(self) -> None:
        """Raises the refusal that sends an agent, or an operator, to the leader."""
        if self.is_leading():
            return
        lead = self.role.lead.value
        if self.role.leads():
            raise refused("busy", "is taking over", retry_after_s=0.2)
        more = {"leader": lead.url} if lead.url and not lead.is_leader else {}
        raise refused("not_leader", "is a standby", **more)

    def require_epoch(self, seen: int) -> None:
        """A node that has followed a higher epoch proves that we lead no more."""
        mine = self.epoch
        if seen <= mine:
            return
        self.role.overtaken(seen)
        raise refused(
            "stale_epoch", f"leads with epoch {mine}, the node has seen {seen}"
        )

    def session(self, session_id: str, caller: str | None) -> Session:
        """The session *session_id*, if it is *caller*'s."""
        self.require_lead()
        session = self.sessions.find(session_id)
        if session is None:
            raise refused("unknown_session", "there is no such session; register again")
        if session.owner != caller:
            raise refused(
                "identity_mismatch",
                f"the session belongs to {session.owner}, the certificate is {caller}",
            )
        return session

    async def want(
        self, node_id: str, make: Callable[[Desired | None], Desired]
    ) -> Desired:
        """Keep what *make* makes of what was wanted on a node until now, and tell the
        node if it is here. One writer at a time, so that none is written over unread.
        """
        async with self._writing:
            old = self.store.desired.get(node_id)
            new = make(old)
            if new is old:
                return new
            kept = await self.store.put(node_id, new)
        self.touch()
        if session := self.sessions.live.get(node_id):
            session.touch()
        return kept

    def touch(self) -> None:
        """What is wanted has changed, or was read by a new leader."""
        self.wanted.set(self.wanted.value + 1)

    def ask(
        self, session: Session, kind: str, args: dict[str, object]
    ) -> tuple[str, MemoryObjectReceiveStream[bytes]]:
        """Ask the node; its answer comes on the stream, and WHOLE once it is that."""
        question = Ask(id=secrets.token_hex(8), kind=kind, args=args)
        send, receive = anyio.create_memory_object_stream[bytes](AHEAD)
        self._answers[question.id] = send
        session.ask(question)
        return question.id, receive

    def answering(self, question: str) -> MemoryObjectSendStream[bytes] | None:
        """Where the answer to *question* goes; None if nobody waits for it any more."""
        return self._answers.pop(question, None)

    def forget(self, question: str) -> None:
        if send := self._answers.pop(question, None):
            send.close()

    def end_sessions(self, reason: str) -> None:
        self.sessions.end_all(Bye(reason=reason, leader=self._elsewhere()))

    def _elsewhere(self) -> str | None:
        lead = self.role.lead.value
        return None if lead.is_leader else lead.url


def caller(request: web.Request) -> str | None:
    """The common name in the certificate of who asks; None without TLS."""
    assert request.transport is not None, "a request is answered while it is open"
    certificate = request.transport.get_extra_info("peercert")
    for part in certificate["subject"] if certificate else ():
        for key, value in part:
            if key == "commonName":
                return value
    return None


def encoded(message: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(message),
        content_type="application/json",
    )
