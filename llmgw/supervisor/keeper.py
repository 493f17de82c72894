"""The task that owns a replica's process, from the wish to the end.

    pending ─▶ fetching ─▶ starting ─▶ ready ⇄ busy ⇄ unhealthy
       ▲                      │          │        │
       │                      ▼          ▼        ▼      it ended, or was given up
       └── backoff | crash_loop ◀────────┴────────┘
    from anywhere: stopping ─▶ stopped      (no longer wanted)
    from pending and fetching: failed       (cannot be; only a new order helps)

It ends in two ways. `stop` means the engine is no longer wanted, and `run` returns
once it is gone. Cancelling `run` means the agent is leaving, and the engine stays for
the next agent to adopt.
"""

import logging
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.backoff import jittered
from llmgw.config import keys
from llmgw.errors import EngineError, WeightsError
from llmgw.supervisor import files, gate, logs
from llmgw.supervisor.backend import Backend, Engine, Place
from llmgw.supervisor.exec import CANNOT_EXECUTE
from llmgw.supervisor.health import Judge, Verdict
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from llmgw.supervisor.order import Order
from llmgw.supervisor.ports import Lease, Ports
from llmgw.supervisor.restarts import Restarts
from llmgw.supervisor.watch import Ended, Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tools:
    """What all keepers work with. *changed* is called after a status did."""

    settings: keys.Supervisor
    backend: Backend
    ledger: Ledger
    ports: Ports
    client: httpx.AsyncClient
    state_dir: Path
    adopt_ready_timeout: float
    changed: Callable[[], None]


class CannotBe(Exception):
    """The order can't be carried out, however often it is tried."""


class Keeper:
    """One replica. `status` may be read at any time."""

    def __init__(
        self,
        tools: Tools,
        order: Order | None,
        survivor: tuple[Entry, Engine] | None = None,
    ) -> None:
        self._tools = tools
        self.order = order
        entry = survivor[0] if survivor else None
        named = order or entry
        assert named, "a keeper has an order, or an engine that it found"
        self.id = named.id
        self.digest = named.digest
        self.generation = named.generation
        self._entry = entry
        self._engine: Engine | None = survivor[1] if survivor else None
        self._launch = entry.launch if entry else None
        self._lease = Lease(entry.launch.ports, []) if entry else None
        self._life = anyio.CancelScope()
        self._is_unwanted = bool(entry and entry.stopping)
        self._reason_to_stop: str | None = None
        self._log_start = 0
        self._restarts = entry.restarts if entry else 0
        self._state: wire.State = "starting" if entry else "pending"
        self._since = time.monotonic()
        self._reason: str | None = None
        self._progress: wire.Progress | None = None
        self._exit: wire.Exit | None = None
        self._pressure: float | None = None
        self._policy = self._new_policy(order)

    # What others ask ----------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """No process, and none will be started by this keeper."""
        return self._state in ("stopped", "failed") and self._engine is None

    @property
    def pid(self) -> int | None:
        return self._engine.identity.pid if self._engine else None

    @property
    def stop_after(self) -> float | None:
        """Seconds without a control plane; None: as the node's own file says."""
        if self.order:
            return self.order.stop_after
        return self._entry.stop_after if self._entry else None

    @property
    def state(self) -> wire.State:
        return self._state

    @property
    def since(self) -> float:
        return self._since

    def status(self) -> wire.ReplicaStatus:
        engine, launch = self._engine, self._launch
        api = launch.ports.get("api") if launch and engine else None
        return wire.ReplicaStatus(
            id=self.id,
            generation=self.generation,
            state=self._state,
            since_s=round(time.monotonic() - self._since, 1),
            pid=engine.identity.pid if engine else None,
            address=launch.host if launch and api is not None else None,
            ports=dict(launch.ports) if launch and engine else {},
            spec_digest=self.digest,
            adopted=engine.adopted if engine else False,
            progress=self._progress,
            exit=self._exit,
            reason=self._reason,
            restarts=self._restarts,
            memory_pressure=self._pressure if engine else None,
        )

    def take(self, order: Order) -> None:
        """An adopted engine learns whose wish it is; it goes on running."""
        assert order.digest == self.digest, "another wish is another keeper"
        if self.order is None:
            self._policy = self._new_policy(order)
        self.order = order

    def park(self, reason: str) -> None:
        """Instead of `run`: it is wanted, and not to be started now."""
        self._become("stopped", reason)

    def stop(self, reason: str | None = None) -> None:
        """No longer wanted: `run` ends the engine and returns. May be called twice."""
        if not self._is_unwanted:
            self._is_unwanted = True
            self._reason_to_stop = reason
            self._life.cancel()

    async def run(self) -> None:
        try:
            with self._life:
                if not self._is_unwanted:
                    await self._keep()
            if self._is_unwanted:
                await self._end()
        finally:
            if self._engine:
                self._engine.close()

    # Its life -----------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            try:
                ended = await self._once()
            except CannotBe as error:
                await run_sync(self._tools.ledger.forget, self.id)
                self._become("failed", str(error))
                return
            if self.order is None:
                await run_sync(self._tools.ledger.forget, self.id)
                self._become("stopped", ended.reason)
                return
            again = self._policy.ended(ended.served)
            self._restarts += 1
            wait = jittered(again.wait, random.random())  # noqa: S311 -- spreads, hides nothing
            self._become("crash_loop" if again.is_loop else "backoff", ended.reason)
            log.warning(
                "engine down replica=%s retry_in=%.1fs reason=%s",
                self.id,
                wait,
                ended.reason.replace("\n", " | "),
            )
            # At once the next line follows, of the same launch if that is known whole.
            if again.wait or (self._entry and not self._entry.is_whole):
                await run_sync(self._tools.ledger.forget, self.id)
                self._launch = None  # whatever it lacked may be there by then
                await anyio.sleep(wait)

    async def _once(self) -> Ended:
        """Starts the engine if none runs, and watches it until it has ended."""
        if self._engine is None:
            try:
                await self._start()
            except EngineError as error:
                if error.final:
                    raise CannotBe(str(error)) from error
                return Ended(str(error))
            except WeightsError as error:
                return Ended(str(error))
        ended = await self._watched()
        self._engine = None
        self._give_ports_back()
        await self._consider(ended)
        return ended

    async def _consider(self, ended: Ended) -> None:
        """A bad launch is told from bad luck: what may not be executed never will."""
        if ended.exit is None or ended.exit.code != CANNOT_EXECUTE:
            return
        run = files.run_dir(self._tools.state_dir, self.id)
        refused = await run_sync(gate.refused, run)
        if refused and refused.final:
            raise CannotBe(str(refused))

    async def _start(self) -> None:
        assert self.order, "without an order nothing is started"
        before = self._launch
        lease = self._tools.ports.lease(
            self.order.ports,
            self.order.host,
            fixed=self.order.port,
            before=before.ports if before else None,
        )
        try:
            if before is None or before.ports != lease.ports:
                self._launch = await self._prepared(self.order, lease)
            assert self._launch
            self._become("starting")
            self._engine = await self._spawn(self._launch, lease)
            self._lease = lease
        except BaseException:
            lease.let_go()
            self._tools.ports.give_back(lease.ports, rest=False)
            raise
        log.info("engine started replica=%s pid=%s", self.id, self._engine.identity.pid)

    async def _prepared(self, order: Order, lease: Lease) -> Launch:
        self._become("fetching")
        try:
            return await order.prepare(lease.ports, self._report)
        except EngineError as error:
            raise CannotBe(str(error)) from error
        except WeightsError as error:
            if error.final:
                raise CannotBe(str(error)) from error
            raise

    async def _spawn(self, launch: Launch, lease: Lease) -> Engine:
        tools = self._tools

        def lay_out() -> Place:
            tags = tools.ledger.tags(self.id)
            place = files.lay_out(tools.state_dir, self.id, launch, tags)
            self._log_start = logs.size(place.log)
            return place

        place = await run_sync(lay_out)

        def record(identity: Identity, cgroup: str | None) -> None:
            entry = Entry(
                machine=tools.ledger.machine,
                id=self.id,
                generation=self.generation,
                digest=self.digest,
                identity=identity,
                launch=launch,
                backend=tools.backend.name,
                cgroup=cgroup,
                restarts=self._restarts,
                stop_after=self.stop_after,
            )
            tools.ledger.write(entry)
            self._entry = entry
            lease.let_go()

        return await tools.backend.start(self.id, launch, place, record)

    async def _watched(self) -> Ended:
        assert self._engine
        assert self._launch
        settings = self._tools.settings
        watch = Watch(
            self._engine,
            self._launch,
            self._log,
            client=self._tools.client,
            judge=Judge(
                time.monotonic(),
                start_timeout=settings.start_timeout,
                stuck_after=settings.stuck_after,
                was_ready=bool(self._entry and self._entry.was_ready),
                ready_within=self._tools.adopt_ready_timeout,
                has_probe=settings.probe_stuck and _has_probe(self._launch),
            ),
            interval=settings.health_interval,
            seen=self._seen,
        )
        ended = await watch.until_ended(self._log_start, settings.stop_grace)
        self._exit = ended.exit
        return ended

    async def _seen(self, verdict: Verdict, pressure: float | None) -> None:
        if pressure != self._pressure:
            self._pressure = pressure
            self._tools.changed()
        if not self.digest:
            self._become(
                "unhealthy", "found by its tag: the ledger does not say what it is"
            )
            return
        if verdict.state == "ready" and self._entry and not self._entry.was_ready:
            await self._amend(was_ready=True)
        self._become(verdict.state, verdict.reason)

    async def _amend(self, **changes: bool) -> None:
        """Says more in the ledger's line. The line that stands there is still true."""
        if self._entry is None:
            return
        self._entry = files.replaced(self._entry, **changes)
        try:
            await run_sync(self._tools.ledger.write, self._entry)
        except EngineError as error:
            log.warning("ledger not amended replica=%s reason=%s", self.id, error.what)

    async def _end(self) -> None:
        """Not to be interrupted: half a stop would leave a GPU held."""
        with anyio.CancelScope(shield=True):
            if self._engine and self._launch:
                self._become("stopping", self._reason_to_stop)
                await self._amend(stopping=True)
                sign = signal.Signals[f"SIG{self._launch.stop_signal}"]
                self._exit = await self._engine.stop(
                    sign, self._tools.settings.stop_grace
                )
                self._engine = None
            await run_sync(self._tools.ledger.forget, self.id)
            self._give_ports_back()
            self._become("stopped", self._reason_to_stop)
        log.info("engine stopped replica=%s", self.id)

    # Small things -------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        return files.log_path(self._tools.state_dir, self.id)

    def _new_policy(self, order: Order | None) -> Restarts:
        wish = (order.restart if order else None) or wire.Restart()
        own = self._tools.settings
        return Restarts(
            own.restart_base if wish.base_s is None else wish.base_s,
            own.restart_max if wish.max_s is None else wish.max_s,
            own.crash_loop_after
            if wish.crash_loop_after is None
            else wish.crash_loop_after,
            at_once=wish.at_once,
        )

    def _give_ports_back(self) -> None:
        if self._lease:
            self._tools.ports.give_back(self._lease.ports)
            self._lease = None

    def _report(self, progress: wire.Progress) -> None:
        self._progress = progress
        self._tools.changed()

    def _become(self, state: wire.State, reason: str | None = None) -> None:
        if (state, reason) == (self._state, self._reason):
            return
        if state != self._state:
            self._since = time.monotonic()
            self._progress = None  # of what it was doing, and does no more
        self._state = state
        self._reason = reason
        self._tools.changed()


def _has_probe(launch: Launch) -> bool:
    return launch.health is not None and launch.health.probe is not None
