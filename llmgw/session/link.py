"""The link: with one control plane at a time, the first in the list that accepts.

        ┌──────────── a round: each server in order, 300 ms apart ◄────────────┐
        │ one accepts                                    nobody │              │
        ▼                                                       ▼              │
    a session ──── lost, refused, bye, moved ────┐      wait, longer each time ┤
        │ before its first heartbeat was acked   │ after that                  │
        └──► the same round goes on              └──► from the top, at once ───┘

Whatever happens in this picture, no engine hears of it. All that reaches the rest of
the agent is `desired`: the last complete snapshot of an accepted leader.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus

from llmgw.aio import Latest, first
from llmgw.backoff import jittered
from llmgw.config import keys
from llmgw.config.address import masked
from llmgw.errors import Refused, SessionError, Unreachable
from llmgw.session import rules
from llmgw.session.dial import Dialer, Resolver
from llmgw.session.events import Events
from llmgw.session.http import within
from llmgw.session.memory import Memory
from llmgw.session.node import Desired, Identity, LinkStatus, Node
from llmgw.session.register import KEPT, Opened, Registrar
from llmgw.session.session import Session, Shared
from llmgw.session.troubles import Troubles, loopback, refused
from llmgw.tls import Certificates
from llmgw.wire import (
    Goodbye,
    Probe,
    Probed,
    Problem,
    Snapshot,
    decode_line,
)

log = logging.getLogger(__name__)

GOODBYE_LIMIT = 2.0
PROBE_LIMIT = 10.0
CERTIFICATES_EVERY = 60.0


class Link:
    """`run` ends when cancelled, or after `goodbye`."""

    def __init__(
        self,
        identity: Identity,
        servers: tuple[str, ...],
        certificates: Certificates | None,
        settings: keys.Link,
        node: Node,
        state_dir: Path,
        *,
        heartbeat: float,
        reconnect_base: float,
        reconnect_max: float,
        root: Path = Path("/"),
        resolver: Resolver | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.desired = Latest[Desired | None](None)
        self.status = Latest(LinkStatus())
        self.events = Events()
        self._identity = identity
        self._certificates = certificates
        self._settings = settings
        self._node = node
        self._heartbeat = heartbeat
        self._base = reconnect_base
        self._max = reconnect_max
        self._dice = dice
        self._troubles = Troubles()
        self._memory = Memory(
            state_dir,
            servers,
            self._troubles,
            tls=certificates is not None,
            root=root,
        )
        self._dialer = Dialer(
            certificates,
            limit=settings.dial_timeout,
            user_timeout=rules.MISSED * heartbeat,
            resolver=resolver,
        )
        self._registrar = Registrar(identity, node, self._memory, self._dialer)
        self._shared = Shared(
            node=node,
            dialer=self._dialer,
            memory=self._memory,
            troubles=self._troubles,
            events=self.events,
            desired=self.desired,
            problems=self.problems,
            dice=dice,
            fail_back_interval=settings.fail_back_interval,
            fixed_address=identity.mgmt_addr is not None,
        )
        self._not_before: dict[str, float] = {}
        self._answers: set[str] = set()  # the refusals of the present round
        self._present: Opened | None = None
        self._leaving = anyio.Event()

    def problems(self) -> tuple[Problem, ...]:
        own = self._certificates.problems() if self._certificates else ()
        return (*self._troubles.problems(), *own)

    # The loop --------------------------------------------------------------------

    async def run(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        await self._remember()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_on)
                group.start_soon(self._watch_certificates)
                group.start_soon(self._mend)
                await self._leaving.wait()
                group.cancel_scope.cancel()
        finally:
            await self._registrar.let_go()

    async def _watch_certificates(self) -> None:
        """A session can last longer than a certificate; its end is told in time."""
        while self._certificates is not None:
            await anyio.to_thread.run_sync(self._certificates.refresh)
            await anyio.sleep(CERTIFICATES_EVERY)

    async def _mend(self) -> None:
        """A disk that was full is not so for ever."""
        while True:
            await anyio.sleep(self._heartbeat)
            await self._memory.mend()

    async def _keep_on(self) -> None:
        waits = rules.Waits(self._base, self._max)
        flaps = 0
        pass_over = self._new_round()
        while True:
            opened = await self._race(pass_over)
            if opened is None:
                await self._pause(self._after_a_round(waits))
                pass_over = self._new_round()
                continue
            began = anyio.current_time()
            session, end = await self._hold(opened)
            if not session.acked:
                # It only looked like a leader. The rest of the round may have one.
                continue
            waits = rules.Waits(self._base, self._max)
            flaps = flaps + 1 if anyio.current_time() - began < self._base else 0
            if flaps > rules.FLAPS:
                await self._pause(jittered(self._base, self._dice()))
            hint = end.leader if isinstance(end, Refused) else None
            pass_over = self._new_round(hint)

    def _new_round(self, hint: str | None = None) -> rules.Round:
        self._answers.clear()
        return rules.Round(self._memory.servers, hint)

    async def _race(self, pass_over: rules.Round) -> Opened | None:
        """The first server that accepts; None if none does."""
        trying: list[str] = []

        async def attempt(server: str) -> Opened:
            trying.append(server)
            try:
                opened = await self._registrar.open(server)
            except SessionError as error:
                self._pass_over(server, error)
                if isinstance(error, Refused):
                    pass_over.prefer(error.leader)
                trying.remove(server)
                raise
            trying.remove(server)
            return opened

        def contenders() -> Iterator[Callable[[], Awaitable[Opened]]]:
            for server in pass_over:
                if self._not_before.get(server, 0.0) <= anyio.current_time():
                    yield partial(attempt, server)

        opened = await first(
            contenders(),
            self._settings.head_start,
            losing=SessionError,
            discard=_close,
        )
        pass_over.put_back(trying)
        if opened is not None:
            await self._registrar.let_go()
        return opened

    def _after_a_round(self, waits: rules.Waits) -> float:
        now = anyio.current_time()
        busy = [self._not_before.get(server, 0.0) for server in self._memory.servers]
        return waits.after(
            stubborn=not self._answers.isdisjoint(rules.STUBBORN),
            standby="not_leader" in self._answers,
            not_before=min(busy, default=0.0) - now,
            dice=self._dice(),
        )

    async def _pause(self, seconds: float) -> None:
        self._tell(state="disconnected")
        if seconds > KEPT:
            await self._registrar.let_go()
        log.info("no control plane accepts next_round_in=%.1fs", seconds)
        await anyio.sleep(seconds)

    # One server ------------------------------------------------------------------

    def _pass_over(self, server: str, error: SessionError) -> None:
        """Remember why, and what it means for the next time."""
        shown, known = masked(server), self.status.value.tried
        level = logging.DEBUG if known.get(shown) == error.what else logging.INFO
        log.log(level, "control plane passed over %s", error)
        self._tell(tried={**known, shown: error.what})
        if not isinstance(error, Refused):
            self._memory.failed(server)
            return
        self._answers.add(error.code)
        if error.retry_after_s is not None:
            seconds = min(error.retry_after_s, rules.RETRY_AFTER_MAX)
            self._not_before[server] = anyio.current_time() + seconds
        if error.code in rules.TOLD:
            self._troubles.set(refused(error, self._memory.epoch))

    async def _hold(self, opened: Opened) -> tuple[Session, SessionError]:
        """A session from its acceptance to its end, and why it ended."""
        session = Session(opened, self._shared, self._heartbeat)
        try:
            end = await self._end_of(session, opened)
        finally:
            self._present = None
            with anyio.CancelScope(shield=True):
                await session.aclose()
        log.warning("session ended acked=%s %s", session.acked, end)
        self._tell(state="connecting", server=None, session=None)
        self._pass_over(opened.server, end)
        return session, end

    async def _end_of(self, session: Session, opened: Opened) -> SessionError:
        try:
            await self._settle(opened, session)
            await session.run()
        except SessionError as error:
            return error

    async def _settle(self, opened: Opened, session: Session) -> None:
        registered = opened.registered
        # First on disk: what is done in the name of an epoch is never before it.
        await self._memory.accept(registered.epoch, where=opened.connection.where)
        if registered.servers is not None:
            await self._memory.learn(registered.servers)
        await self._memory.drop_failed(but=opened.server)
        self._present = opened
        self._not_before.pop(opened.server, None)
        self._troubles.clear(*rules.TOLD)
        self._troubles.settle(
            "mgmt_addr_loopback", loopback(opened.said.mgmt_addr or "")
        )
        self._tell(
            state="connected",
            server=masked(opened.server),
            session=registered.session,
            epoch=registered.epoch,
            mgmt_addr=opened.said.mgmt_addr,
            mgmt_interface=opened.said.mgmt_interface,
            heartbeat_s=session.beat,
            lease_s=session.lease,
            tried={},
            sessions=self.status.value.sessions + 1,
        )
        log.info(
            "session opened server=%s epoch=%d mgmt_addr=%s",
            masked(opened.server),
            registered.epoch,
            opened.said.mgmt_addr,
        )

    # What others ask of it -------------------------------------------------------

    async def goodbye(
        self, reason: str, engines: Literal["left_running", "stopped"]
    ) -> None:
        """Tell the control plane and let go: at most two seconds, and never a fault."""
        present, self._present = self._present, None
        if present is not None:
            goodbye = Goodbye(
                session=present.registered.session, reason=reason, engines=engines
            )
            with anyio.move_on_after(GOODBYE_LIMIT):
                try:
                    await self._ask(present.server, "/v1/goodbye", goodbye, None)
                except SessionError as error:
                    log.info("goodbye not heard %s", error)
        self._leaving.set()

    async def probe(self, address: str, port: int) -> Probed:
        """Whether the control plane can connect to this node there. For `doctor`."""
        present = self._present
        if present is None:
            raise Unreachable("no control plane to ask: the link is down")
        session = present.registered.session
        with within(PROBE_LIMIT, "/v1/probe", present.connection.where):
            return await self._ask(
                present.server,
                f"/v1/probe?session={session}",
                Probe(address=address, port=port),
                Probed,
            )

    async def forget_epoch(self) -> None:
        """For `llmgw forget-epoch`: a control plane was rebuilt from nothing."""
        await self._memory.forget_epoch()
        self._troubles.clear("stale_epoch")

    async def _ask(
        self, server: str, target: str, body: object, answer: type[Probed] | None
    ) -> Probed:
        connection = await self._dialer.dial(server)
        try:
            return await connection.ask("POST", target, body, answer)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.aclose()

    # What it keeps ---------------------------------------------------------------

    async def _remember(self) -> None:
        await self._memory.load()
        line = await self._memory.wanted()
        if line is not None:
            self._take_kept(line)
        self._tell(state="connecting", epoch=self._memory.epoch)

    def _take_kept(self, line: bytes) -> None:
        try:
            snapshot = decode_line(line)
            if not isinstance(snapshot, Snapshot):
                return
            wanted = snapshot.wanted()
        except ValueError as error:
            log.warning("what was wanted before is unreadable error=%s", error)
            return
        desired = Desired(
            epoch=snapshot.epoch,
            rev=snapshot.rev,
            wanted=wanted,
            builds=snapshot.builds,
            drain=snapshot.drain,
            kept=True,
        )
        self.desired.set(desired)

    def _tell(self, **news: object) -> None:
        status = msgspec.structs.replace(self.status.value, **news)
        if status.state != self.status.value.state or not self.status.number:
            status = msgspec.structs.replace(status, since=anyio.current_time())
        self.status.set(status)


async def _close(opened: Opened) -> None:
    await opened.connection.aclose()
