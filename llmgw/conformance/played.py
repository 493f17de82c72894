"""The checks, in the order in which they are played."""

import gzip
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

import anyio
import httpx
import msgspec
from msgspec import Struct

from llmgw.conformance.seen import (
    Broken,
    Skipped,
    answered,
    done,
    ends,
    lines_of,
    must,
    read,
    refused,
    unreachable,
    within,
)
from llmgw.errors import LlmgwError
from llmgw.wire import (
    MAX_LINE,
    UNDECODABLE,
    AgentInfo,
    Event,
    Fact,
    Facts,
    Goodbye,
    Heartbeat,
    HeartbeatAck,
    Leader,
    Load,
    Probe,
    Probed,
    Refusal,
    Register,
    Registered,
    Snapshot,
)

T = TypeVar("T")
NDJSON = "application/x-ndjson"
PROBLEM = "application/problem+json"
PATIENCE = 5.0
# The last is what httpx lets through: a certificate refused after the handshake.
UNANSWERED = (httpx.HTTPError, TimeoutError, ssl.SSLError)


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """*why*: what was seen instead, or why it was not looked at."""

    rule: str
    claim: str
    outcome: Literal["pass", "fail", "skip"]
    why: str = ""


class Options(Struct, frozen=True, kw_only=True):
    """*step_down*: also try what ends its lead.

    *longest_lease*: one that takes longer is not waited for.
    """

    node_id: str
    has_tls: bool = False
    step_down: bool = False
    longest_lease: float = 20.0


class Conformance:
    def __init__(self, client: httpx.AsyncClient, options: Options) -> None:
        self._client = client
        self._options = options
        self._instance = secrets.token_hex(8)
        self._seq = 0
        self.checks: tuple[tuple[str, str, Callable[[], Awaitable[None]]], ...] = (
            ("leader", "/v1/leader says who leads", self.leader),
            ("register", "a session has a lease of three heartbeats", self.register),
            ("register", "fields it does not know are skipped", self.newer),
            ("desired", "the stream is JSON lines, never compressed", self.stream),
            ("desired", "a line comes every heartbeat", self.pings),
            ("heartbeat", "the same one twice is harmless", self.beats),
            ("facts", "facts are taken, compressed too", self.facts),
            ("events", "events are taken", self.events),
            ("answers", "an answer is taken", self.answers),
            ("probe", "it connects back to the node and says how it went", self.probe),
            ("goodbye", "a session that said goodbye is over", self.goodbye),
            ("refusals", "404 unknown_session", self.unknown_session),
            ("refusals", "426 protocol, with what it accepts", self.protocol),
            ("refusals", "409 node_in_use for another machine", self.clone),
            ("refusals", "403 identity_mismatch", self.mismatch),
            ("refusals", "garbage is refused, and ends nothing", self.garbage),
            ("3.4", "all it says carries the epoch of the session", self.epochs),
            ("3.5", "registering again replaces the session", self.again),
            ("3.5", "a session ends when its lease does", self.lease),
            ("3.6", "a snapshot that acts is complete and well-formed", self.whole),
            ("3.7", "no line is longer than it said", self.lines),
            ("3.4", "told of a higher epoch, it leads no more", self.stale),
        )

    async def run(self, told: Callable[[Verdict], None]) -> None:
        """Each check in its turn; *told* as each is done. LlmgwError: nobody leads."""
        await self._require_leader()
        for rule, claim, check in self.checks:
            told(await _judged(rule, claim, check))

    async def _require_leader(self) -> None:
        where = str(self._client.base_url)
        try:
            with anyio.fail_after(PATIENCE):
                answer = await self._register()
        except UNANSWERED as error:
            raise unreachable(error, where) from error
        # Whatever else is wrong with it is for the checks to tell.
        if answer.status_code == 421:
            leader = _said_leader(answer.content)
            raise LlmgwError(
                "is a standby, which only refuses",
                where=where,
                fix=f"ask the leader{', ' + leader if leader else ''}",
            )
        if answer.status_code == 200:
            await _judged("", "", lambda: self._leave(answer))

    async def _leave(self, answer: httpx.Response) -> None:
        await self._goodbye(read(answer, Registered).session)

    async def leader(self) -> None:
        leader = read(await self._client.get("/v1/leader"), Leader)
        must(leader.leader, "it accepts agents and says that it does not lead")

    async def register(self) -> None:
        async with self._session() as mine:
            beat = mine.heartbeat_s or 5.0
            must(1 <= beat <= 60, f"heartbeat_s is {beat:g}, not within 1 and 60")
            lease = mine.lease_s
            must(lease is not None, "lease_s is missing")
            must((lease or 0) >= 3 * beat, f"lease_s {lease} < 3 * {beat:g}")

    async def newer(self) -> None:
        said = msgspec.to_builtins(self._said()) | {"in_version_9": {"x": [1]}}
        answer = await self._post("register", said)
        await self._leave(answer)

    async def stream(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0]
            must(kind == NDJSON, f"content-type is {kind!r}")
            coding = answer.headers.get("content-encoding", "identity")
            must(coding == "identity", f"content-encoding is {coding}")

    async def pings(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            lines = lines_of(answer)
            for _ in range(2):
                # Half a second for a machine that is busy.
                await within(lines, (mine.heartbeat_s or 5.0) + 0.5)

    async def beats(self) -> None:
        async with self._session() as mine:
            beat = self._beat(mine)
            for _ in range(2):
                read(await self._post("heartbeat", beat), HeartbeatAck)

    async def facts(self) -> None:
        facts = Facts(hash="f1", facts={"os": Fact(source="test", age_s=0, value=1)})
        body = msgspec.json.encode(facts)
        async with self._session() as mine:
            path = f"/v1/facts?session={mine.session}"
            done(await self._client.put(path, content=body))
            done(
                await self._client.put(
                    path,
                    content=gzip.compress(body),
                    headers={"Content-Encoding": "gzip"},
                )
            )

    async def events(self) -> None:
        event = Event(seq=1, at_s=0.5, kind="conformance", text="is being checked")
        async with self._session() as mine:
            done(await self._post(f"events?session={mine.session}", [event]))

    async def answers(self) -> None:
        async with self._session() as mine:
            path = f"/v1/answers/never-asked?session={mine.session}"
            done(await self._client.post(path, content=b"x" * 100_000))

    async def probe(self) -> None:
        async with self._session() as mine:
            # Nothing listens on port 1, or something does: it has to say which.
            said = Probe(address=self._said().mgmt_addr or "", port=1)
            answer = await self._post(f"probe?session={mine.session}", said)
            probed = read(answer, Probed)
            must(bool(probed.reachable or probed.reason), "unreachable, without reason")

    async def goodbye(self) -> None:
        async with self._session() as mine:
            done(await self._goodbye(mine.session))
            refused(await self._post("heartbeat", self._beat(mine)), 404)

    async def unknown_session(self) -> None:
        nobody = Registered(session="no-such-session", epoch=0)
        answer = await self._post("heartbeat", self._beat(nobody))
        refused(answer, 404, "unknown_session")
        path = "/v1/desired?session=no-such-session&have=0"
        refused(await self._client.get(path), 404, "unknown_session")

    async def protocol(self) -> None:
        said = msgspec.structs.replace(self._said(), protocol=(9999,))
        refusal = refused(await self._post("register", said), 426, "protocol")
        must(bool(refusal.accepts), "it does not say what it accepts")

    async def clone(self) -> None:
        async with self._session() as mine:
            said = msgspec.structs.replace(
                self._said(), instance="another", machine_id_hash="another"
            )
            refused(await self._post("register", said), 409, "node_in_use")
            read(await self._post("heartbeat", self._beat(mine)), HeartbeatAck)

    async def mismatch(self) -> None:
        if not self._options.has_tls:
            raise Skipped("needs TLS: without it a name cannot be proven")
        said = msgspec.structs.replace(
            self._said(), node_id=f"not-{self._options.node_id}"
        )
        refused(await self._post("register", said), 403, "identity_mismatch")

    async def garbage(self) -> None:
        async with self._session() as mine:
            for body in (b"", b"{", b"<html>", b"\xff\xfe", b'{"session": 7}'):
                answer = await self._client.post("/v1/heartbeat", content=body)
                must(400 <= answer.status_code < 500, f"{body!r}: {answered(answer)}")
            read(await self._post("heartbeat", self._beat(mine)), HeartbeatAck)

    async def epochs(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            ack = read(await self._post("heartbeat", self._beat(mine)), HeartbeatAck)
            must(ack.epoch == mine.epoch, f"acked epoch {ack.epoch}, not {mine.epoch}")
            line = await within(lines_of(answer), (mine.heartbeat_s or 5.0) + 0.5)
            if isinstance(line, Snapshot):
                must(line.epoch == mine.epoch, f"snapshot of epoch {line.epoch}")

    async def again(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            lines = lines_of(answer)
            async with self._session() as other:
                must(other.session != mine.session, "it is the same session")
                await ends(lines)
                refused(await self._post("heartbeat", self._beat(mine)), 404)
                read(await self._post("heartbeat", self._beat(other)), HeartbeatAck)

    async def lease(self) -> None:
        async with self._session() as mine:
            lease = mine.lease_s or 15.0
            if lease > self._options.longest_lease:
                raise Skipped(f"the lease is {lease:g} s: add --slow to wait for it")
            await anyio.sleep(lease + 1)
            answer = await self._post("heartbeat", self._beat(mine))
            refused(answer, 404, "unknown_session")

    async def whole(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            line = await within(lines_of(answer), (mine.heartbeat_s or 5.0) + 0.5)
            if not isinstance(line, Snapshot):
                # Right of it: nobody has said what is wanted on a node like this.
                return
            must(line.complete, "the first snapshot is not complete")
            line.wanted()

    async def lines(self) -> None:
        async with self._session() as mine, self._stream(mine) as answer:
            limit = mine.max_line or MAX_LINE
            with anyio.fail_after((mine.heartbeat_s or 5.0) + PATIENCE):
                async for line in answer.aiter_lines():
                    must(len(line.encode()) <= limit, f"{len(line)} > {limit} bytes")
                    return
            raise Broken("the stream ended")

    async def stale(self) -> None:
        if not self._options.step_down:
            raise Skipped("would end its lead: add --step-down")
        said = msgspec.structs.replace(self._said(), epoch_seen=2**53)
        refused(await self._post("register", said), 409, "stale_epoch")
        leader = read(await self._client.get("/v1/leader"), Leader)
        must(not leader.leader, "it still says that it leads")
        refused(await self._register(), 421, "not_leader")

    def _said(self) -> Register:
        return Register(
            node_id=self._options.node_id,
            instance=self._instance,
            machine_id_hash=self._instance,
            boot_id=self._instance,
            agent=AgentInfo(version="conformance"),
            hostname=self._options.node_id,
            mgmt_addr="127.0.0.1",
            mgmt_interface=None,
        )

    async def _register(self) -> httpx.Response:
        return await self._post("register", self._said())

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Registered]:
        registered = read(await self._register(), Registered)
        try:
            yield registered
        finally:
            await self._goodbye(registered.session)

    @asynccontextmanager
    async def _stream(self, mine: Registered) -> AsyncGenerator[httpx.Response]:
        path = f"/v1/desired?session={mine.session}&have=0"
        async with self._client.stream("GET", path) as answer:
            must(answer.status_code == 200, answered(answer))
            yield answer

    def _beat(self, mine: Registered) -> Heartbeat:
        self._seq += 1
        return Heartbeat(
            session=mine.session,
            seq=self._seq,
            epoch=mine.epoch,
            rev_applied=None,
            facts_hash="",
            load=Load(),
        )

    async def _goodbye(self, session: str) -> httpx.Response:
        said = Goodbye(session=session, reason="conformance", engines="left_running")
        return await self._post("goodbye", said)

    async def _post(self, path: str, message: object) -> httpx.Response:
        body = msgspec.json.encode(message)
        return await self._client.post(f"/v1/{path}", content=body)


def _said_leader(refusal: bytes) -> str | None:
    try:
        return msgspec.json.decode(refusal, type=Refusal).leader
    except UNDECODABLE:
        return None


async def _judged(
    rule: str, claim: str, check: Callable[[], Awaitable[None]]
) -> Verdict:
    try:
        await check()
    except Skipped as reason:
        return Verdict(rule=rule, claim=claim, outcome="skip", why=str(reason))
    except (Broken, *UNDECODABLE, ValueError, *UNANSWERED) as error:
        why = str(error) or f"no answer ({type(error).__name__})"
        return Verdict(rule=rule, claim=claim, outcome="fail", why=why)
    return Verdict(rule=rule, claim=claim, outcome="pass")
