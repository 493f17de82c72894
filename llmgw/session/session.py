"""One session with one control plane, from its registration to its end."""

import gzip
import logging
import time
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import quote

import anyio
import msgspec

from llmgw.aio import Latest, race
from llmgw.backoff import jittered
from llmgw.config.address import masked
from llmgw.errors import LlmgwError, Refused, SessionError, Unreachable
from llmgw.session import route, rules
from llmgw.session.dial import Dialer
from llmgw.session.events import Events
from llmgw.session.http import JSON, Answer, Connection, within
from llmgw.session.memory import Memory, Troubles
from llmgw.session.node import Desired, Node
from llmgw.wire import (
    Ask,
    Bye,
    Heartbeat,
    HeartbeatAck,
    Leader,
    Problem,
    Refusal,
    Registered,
    ReplicaStatus,
    Snapshot,
    decode_line,
)

log = logging.getLogger(__name__)

# Facts and answers: longer than any of them should take, and nothing waits for it.
SIDE_LIMIT = 30.0
ANSWERERS = 4
ASKS_WAITING = 16
# A burst of news becomes one heartbeat.
GATHER = 0.05
# Readings in a row, one a heartbeat, before another own address is believed.
STABLE = 3
# Seconds between two clocks that an operator should hear of.
SKEW = 5.0
# Refusals after which there is no session to ask for anything more.
ENDING = frozenset({"unknown_session", "not_leader", "stale_epoch", *rules.STUBBORN})


class Opened(msgspec.Struct, frozen=True):
    """A registration that was accepted, and the connection it came over."""

    server: str
    connection: Connection
    registered: Registered
    statuses: tuple[ReplicaStatus, ...]
    facts_hash: str
    mgmt_addr: str
    mgmt_interface: str | None
    way: route.Way


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all sessions of a link have in common."""

    node: Node
    dialer: Dialer
    memory: Memory
    troubles: Troubles
    events: Events
    desired: Latest[Desired | None]
    problems: Callable[[], tuple[Problem, ...]]
    dice: Callable[[], float]
    fail_back_interval: float
    fixed_address: bool


class Session:
    """`run` ends by raising why: a SessionError. Whatever was under way then is
    cancelled and its connections closed, so that nothing late can be heard.

    *acked* once a heartbeat was answered: until then nothing proves that it works.
    """

    def __init__(self, opened: Opened, shared: Shared, written_beat: float) -> None:
        registered = opened.registered
        self.server = opened.server
        self._where = opened.connection.where
        self.acked = False
        self.beat = rules.heartbeat(registered.heartbeat_s, written_beat)
        self.lease = rules.lease(registered.lease_s, self.beat)
        self._id = registered.session
        self._target = f"session={quote(registered.session, safe='')}"
        self._epoch = registered.epoch
        self._max_line = rules.max_line(registered.max_line)
        self._opened = opened
        self._with = shared
        self._written_beat = written_beat
        self._beating: Connection | None = opened.connection
        self._side: Connection | None = None
        self._side_lock = anyio.Lock()
        self._seq = 0
        self._heard = {status.id: status for status in opened.statuses}
        self._heard_rest: object = None
        self._facts_told = opened.facts_hash
        self._facts_due = Latest(0)
        self._asks, self._to_answer = anyio.create_memory_object_stream[Ask](
            ASKS_WAITING
        )

    async def run(self) -> NoReturn:
        try:
            await race(
                self._hear,
                self._live,
                self._tell_facts,
                self._tell_events,
                self._watch_address,
                self._look_back,
                *[self._answer] * ANSWERERS,
            )
            raise AssertionError("none of them returns")
        finally:
            self._asks.close()
            self._to_answer.close()
            with anyio.CancelScope(shield=True):
                await self.aclose()

    async def aclose(self) -> None:
        for connection in (self._beating, self._side):
            if connection is not None:
                await connection.aclose()

    # What is wanted --------------------------------------------------------------

    async def _hear(self) -> None:
        connection = await self._with.dialer.dial(self.server)
        try:
            target = f"/v1/desired?{self._target}&have={self._have()}"
            with within(self.silence, "the stream", self._where):
                lines = await connection.lines(target, self._max_line)
            while True:
                with within(self.silence, "the stream", self._where):
                    line = await lines.next()
                await self._obey(line)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()

    @property
    def silence(self) -> float:
        """Seconds without a whole line after which the stream is dead."""
        return rules.MISSED * self.beat

    def _have(self) -> int:
        # A revision counts within its epoch only.
        desired = self._with.desired.value
        same = desired is not None and desired.epoch == self._epoch
        return desired.rev if desired is not None and same else 0

    async def _obey(self, line: bytes) -> None:
        try:
            message = decode_line(line)
        except ValueError as error:
            raise Unreachable(
                f"sends a line that is no message: {error}", where=self._where
            ) from error
        match message:
            case Snapshot():
                await self._take(message, line)
            case Bye(reason=reason, leader=leader):
                what = f"says goodbye: {reason}"
                raise Refused(what, where=self._where, code="bye", leader=leader)
            case Ask():
                self._queue(message)
            case _:  # a ping, or what a newer control plane says
                pass

    async def _take(self, snapshot: Snapshot, line: bytes) -> None:
        with_ = self._with
        await with_.memory.accept(snapshot.epoch, where=self._where)
        if not snapshot.complete:
            log.info("incomplete snapshot ignored rev=%d", snapshot.rev)
            return
        try:
            wanted = snapshot.wanted()
        except ValueError as error:
            with_.troubles.set(
                Problem(
                    code="snapshot_refused",
                    severity="error",
                    what=f"the desired state rev {snapshot.rev} is refused whole: "
                    f"{error}",
                    where=self._where,
                )
            )
            return
        with_.troubles.clear("snapshot_refused")
        self._epoch = snapshot.epoch
        desired = Desired(
            epoch=snapshot.epoch,
            rev=snapshot.rev,
            wanted=wanted,
            builds=snapshot.builds,
            drain=snapshot.drain,
        )
        with_.desired.set(desired)
        await with_.memory.keep_wanted(line)

    def _queue(self, ask: Ask) -> None:
        try:
            self._asks.send_nowait(ask)
        except anyio.WouldBlock:
            log.warning("ask dropped, too many are waiting id=%s", ask.id)

    async def _answer(self) -> None:
        async for ask in self._to_answer:
            try:
                with anyio.fail_after(SIDE_LIMIT):
                    body = await self._with.node.answer(ask)
            except (LlmgwError, TimeoutError) as error:
                what = str(error) or f"took longer than {SIDE_LIMIT:g} s"
                body = msgspec.json.encode(Refusal(code="no_answer", detail=what))
            target = f"/v1/answers/{quote(ask.id, safe='')}?{self._target}"
            await self._aside("POST", target, body)

    # What is ---------------------------------------------------------------------

    async def _live(self) -> None:
        deadline = anyio.current_time()
        while True:
            seen = self._with.node.changed.number
            await self._heartbeat()
            now = anyio.current_time()
            if now >= deadline:
                deadline = rules.next_beat(deadline, self.beat, now)
            await self._until(deadline, seen)

    async def _until(self, deadline: float, seen: int) -> None:
        """The next beat is due, or there is news that should not wait for it."""
        with anyio.move_on_after(deadline - anyio.current_time()):
            while True:
                seen, _ = await self._with.node.changed.newer_than(seen)
                await anyio.sleep(GATHER)
                if self._is_urgent():
                    return

    def _is_urgent(self) -> bool:
        node = self._with.node
        return (
            rules.urgent(node.statuses(), self._heard)
            or (node.draining, node.rev_applied) != self._heard_rest
        )

    async def _heartbeat(self) -> None:
        node = self._with.node
        statuses = node.statuses()
        rest = node.draining, node.rev_applied
        facts_hash = node.facts().hash
        self._seq += 1
        heartbeat = Heartbeat(
            session=self._id,
            seq=self._seq,
            epoch=self._epoch,
            rev_applied=node.rev_applied,
            facts_hash=facts_hash,
            load=node.load(),
            replicas=rules.changed(statuses, self._heard),
            problems=(*node.problems(), *self._with.problems()),
            draining=node.draining,
        )
        try:
            ack = await self._send(heartbeat)
        except SessionError as error:
            if isinstance(error, Refused) and error.code:
                raise
            log.info("heartbeat lost, sent again at once %s", error)
            ack = await self._send(heartbeat)
        self.acked = True
        self._heard = {status.id: status for status in statuses}
        self._heard_rest = rest
        await self._note(ack, facts_hash)

    async def _send(self, heartbeat: Heartbeat) -> HeartbeatAck:
        """One try, over a new connection if the last broke; its answer in time."""
        try:
            patience = rules.patience(self.lease, self.beat)
            with within(patience, "a heartbeat", self._where):
                if self._beating is None:
                    self._beating = await self._with.dialer.dial(self.server)
                ack = await self._beating.ask(
                    "POST", "/v1/heartbeat", heartbeat, HeartbeatAck
                )
            self._note_clock(self._beating.date)
        except BaseException:
            broken, self._beating = self._beating, None
            if broken is not None:
                with anyio.CancelScope(shield=True):
                    await broken.aclose()
            raise
        return ack

    async def _note(self, ack: HeartbeatAck, facts_hash: str) -> None:
        await self._with.memory.accept(ack.epoch, where=self._where)
        if ack.heartbeat_s is not None:
            self.beat = rules.heartbeat(ack.heartbeat_s, self._written_beat)
            self.lease = max(self.lease, rules.lease(None, self.beat))
        if ack.servers is not None:
            await self._with.memory.learn(ack.servers)
        if "replicas" in ack.want:
            self._heard = {}
        if "facts" in ack.want or facts_hash != self._facts_told:
            self._facts_due.set(self._seq)

    def _note_clock(self, date: float | None) -> None:
        """For people only: no rule of the link looks at a clock on the wall."""
        if date is None:
            return
        off = time.time() - date
        if abs(off) < SKEW:
            self._with.troubles.clear("clock_skew")
            return
        way = "ahead of" if off > 0 else "behind"
        self._with.troubles.set(
            Problem(
                code="clock_skew",
                severity="warning",
                what=f"this machine's clock is {way} that of {self._where}",
                fix="have both follow a time server: certificates depend on it",
            )
        )

    async def _tell_facts(self) -> None:
        seen = self._facts_due.number
        while True:
            seen, _ = await self._facts_due.newer_than(seen)
            facts = self._with.node.facts()
            body = gzip.compress(msgspec.json.encode(facts), compresslevel=1)
            headers = (("content-type", JSON), ("content-encoding", "gzip"))
            target = f"/v1/facts?{self._target}"
            if await self._aside("PUT", target, body, headers):
                self._facts_told = facts.hash

    async def _tell_events(self) -> None:
        events = self._with.events
        seen = -1
        while True:
            seen, _ = await events.added.newer_than(seen)
            while batch := events.take():
                told = False
                try:
                    body = msgspec.json.encode(batch)
                    told = await self._aside("POST", f"/v1/events?{self._target}", body)
                finally:
                    if not told:
                        events.put_back(batch)
                if not told:
                    await anyio.sleep(self.beat)

    async def _aside(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (("content-type", JSON),),
    ) -> bool:
        """Whether it went through. Best effort: the next beat finds it still to do."""
        async with self._side_lock:
            try:
                await self._request_aside(method, target, body, headers)
            except SessionError as error:
                if isinstance(error, Refused) and error.code in ENDING:
                    raise
                log.info("not delivered target=%s %s", target.partition("?")[0], error)
                return False
        return True

    async def _request_aside(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...],
    ) -> Answer:
        """Over a connection of its own, that no heartbeat waits behind."""
        try:
            with within(SIDE_LIMIT, target.partition("?")[0], self._where):
                if self._side is None:
                    self._side = await self._with.dialer.dial(self.server)
                return await self._side.request(method, target, body, headers)
        except BaseException:
            broken, self._side = self._side, None
            if broken is not None:
                with anyio.CancelScope(shield=True):
                    await broken.aclose()
            raise

    # Where we are ----------------------------------------------------------------

    async def _watch_address(self) -> None:
        """Told by registering again, once it is seen to stay."""
        if self._with.fixed_address:
            await anyio.sleep_forever()
        peer = self._opened.connection.peer
        at_first = self._opened.way
        candidate, readings = at_first, 0
        while True:
            await anyio.sleep(self.beat)
            now = await route.source(peer, self._with.node.interface)
            readings = readings + 1 if now == candidate else 1
            candidate = now
            if None not in now and now != at_first and readings >= STABLE:
                raise SessionError(
                    f"this node is now {now[0]} on {now[1]}, "
                    f"was {at_first[0]} on {at_first[1]}",
                    where=self._where,
                )

    async def _look_back(self) -> None:
        """Whether a server that stands before this one in the list leads again."""
        with_ = self._with
        if not with_.fail_back_interval:
            await anyio.sleep_forever()
        while True:
            await anyio.sleep(jittered(with_.fail_back_interval, with_.dice()))
            for server in rules.earlier(with_.memory.servers, self.server):
                if await self._leads(server):
                    raise Refused(
                        f"{masked(server)} leads again and stands before it",
                        where=self._where,
                        code="fail_back",
                        leader=server,
                    )

    async def _leads(self, server: str) -> bool:
        try:
            connection = await self._with.dialer.dial(server)
        except SessionError:
            return False
        try:
            with within(self.beat, "/v1/leader", connection.where):
                said = await connection.ask("GET", "/v1/leader", None, Leader)
        except SessionError:
            return False
        else:
            return said.leader and rules.may_lead(said.epoch, self._epoch)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()
