"""One session with one control plane, from its registration to its end."""

import gzip
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NoReturn
from urllib.parse import quote

import anyio
import msgspec

from llmgw.aio import Latest, race
from llmgw.errors import LlmgwError, Refused, SessionError, Unreachable
from llmgw.session import rules, watch
from llmgw.session.aside import Aside
from llmgw.session.channel import Channel
from llmgw.session.dial import Dialer
from llmgw.session.events import Events
from llmgw.session.http import JSON, within
from llmgw.session.memory import Memory
from llmgw.session.node import Desired, Node
from llmgw.session.register import Opened
from llmgw.session.troubles import Troubles, skew
from llmgw.wire import (
    Ask,
    Bye,
    Heartbeat,
    HeartbeatAck,
    Problem,
    Refusal,
    Snapshot,
    decode_line,
)

log = logging.getLogger(__name__)

# Seconds that an ask may take to be answered.
ANSWER_LIMIT = 30.0
ANSWERERS = 4
ASKS_WAITING = 16
# A burst of news becomes one heartbeat.
GATHER = 0.05


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
        self._beating = Channel(shared.dialer, opened.server, opened.connection)
        self._aside = Aside(shared.dialer, opened.server, self._where)
        self._seq = 0
        self._heard = {status.id: status for status in opened.said.replicas}
        self._heard_rest: object = None
        self._facts_told = opened.said.facts_hash
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
                *self._watchers(),
                *[self._answer] * ANSWERERS,
            )
            raise AssertionError("none of them returns")
        finally:
            with anyio.CancelScope(shield=True):
                await self.aclose()

    def _watchers(self) -> Iterator[Callable[[], Awaitable[NoReturn]]]:
        with_ = self._with
        if not with_.fixed_address:
            yield partial(watch.address, self._opened, with_.node, lambda: self.beat)
        if with_.fail_back_interval:
            yield partial(
                watch.earlier,
                self._opened,
                with_.dialer,
                with_.memory,
                with_.fail_back_interval,
                with_.dice,
            )

    async def aclose(self) -> None:
        self._asks.close()
        self._to_answer.close()
        await self._aside.aclose()
        await self._beating.aclose()

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
        if not rules.may_lead(snapshot.epoch, with_.memory.epoch):
            await with_.memory.accept(snapshot.epoch, where=self._where)  # raises
        if not snapshot.complete:
            # Nothing in it counts, its epoch neither: one that was cut off or made up
            # would lock out every leader below it, for good.
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
        await with_.memory.accept(snapshot.epoch, where=self._where)
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
                with anyio.fail_after(ANSWER_LIMIT):
                    body = await self._with.node.answer(ask)
            except (LlmgwError, TimeoutError) as error:
                what = str(error) or f"took longer than {ANSWER_LIMIT:g} s"
                body = msgspec.json.encode(Refusal(code="no_answer", detail=what))
            target = f"/v1/answers/{quote(ask.id, safe='')}?{self._target}"
            await self._aside.tell("POST", target, body)

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
        patience = rules.patience(self.lease, self.beat)
        with within(patience, "a heartbeat", self._where):
            async with self._beating.connection() as connection:
                ack = await connection.ask(
                    "POST", "/v1/heartbeat", heartbeat, HeartbeatAck
                )
                date = connection.date
        if date is not None:
            with_ = self._with
            with_.troubles.settle("clock_skew", skew(date, self._where))
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

    async def _tell_facts(self) -> None:
        seen = self._facts_due.number
        while True:
            seen, _ = await self._facts_due.newer_than(seen)
            facts = self._with.node.facts()
            body = gzip.compress(msgspec.json.encode(facts), compresslevel=1)
            headers = (("content-type", JSON), ("content-encoding", "gzip"))
            target = f"/v1/facts?{self._target}"
            if await self._aside.tell("PUT", target, body, headers):
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
                    told = await self._aside.tell(
                        "POST", f"/v1/events?{self._target}", body
                    )
                finally:
                    if not told:
                        events.put_back(batch)
                if not told:
                    await anyio.sleep(self.beat)
