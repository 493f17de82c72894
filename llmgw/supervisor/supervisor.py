"""All that runs on this node: one keeper per replica, in a group of its own."""

import logging
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.aio import Latest
from llmgw.config import keys
from llmgw.errors import EngineError
from llmgw.supervisor import adopt, cgroup, files, health, reaper, systemd
from llmgw.supervisor.backend import Backend
from llmgw.supervisor.keeper import Keeper, Tools
from llmgw.supervisor.ledger import Ledger
from llmgw.supervisor.logs import Logs
from llmgw.supervisor.order import Order
from llmgw.supervisor.ports import Ports
from llmgw.supervisor.process import Processes
from llmgw.supervisor.systemd import Units

log = logging.getLogger(__name__)

# A stopped replica is shown so long, for whoever asks what became of it.
REMEMBERED = 600.0
NO_SYSTEMD = EngineError(
    "is systemd, but systemd does not run here or lacks llmgw-engine@.service; "
    "engines are held as processes",
    where="supervisor.backend",
    fix="install the template unit, or set supervisor.backend to process",
)
STATE_DIR = "state_dir"
FORGOTTEN = "no control plane for longer than disconnect.stop_after"


class Supervisor:
    """Keeps what is wanted running. Engines outlive it; the next one adopts them."""

    def __init__(
        self,
        settings: keys.Supervisor,
        state_dir: Path,
        *,
        adopt_ready_timeout: float = 60.0,
    ) -> None:
        self.changed: Latest[int] = Latest(0)
        self._settings = settings
        self._state_dir = state_dir
        self._adopt_ready_timeout = adopt_ready_timeout
        self._ledger = Ledger(state_dir)
        self._ports = Ports(settings.port_range, settings.port_quarantine)
        self._keepers: dict[str, Keeper] = {}
        self._problems: dict[str, tuple[float, wire.Problem]] = {}
        self._logs = Logs(
            settings.log_max_bytes,
            settings.log_keep,
            lambda: [self.log_path(id) for id in self._keepers],
        )
        self._tools: Tools | None = None
        self._group: TaskGroup | None = None
        self._alone_since: float | None = time.monotonic()

    @property
    def mode(self) -> str:
        """How engines are held, for `status`."""
        return self._tools.backend.mode if self._tools else "not started"

    async def run(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Returns never; cancelled, it leaves the engines as they are."""
        try:
            await run_sync(self._ledger.open)
        except EngineError as error:
            self._problem(STATE_DIR, error)
        reaper.become_subreaper()
        backends = await run_sync(self._backends)
        async with (
            health.client(self._settings.health_timeout) as client,
            anyio.create_task_group() as group,
        ):
            self._group = group
            self._tools = Tools(
                settings=self._settings,
                backend=next(iter(backends.values())),
                ledger=self._ledger,
                ports=self._ports,
                client=client,
                state_dir=self._state_dir,
                adopt_ready_timeout=self._adopt_ready_timeout,
                changed=self._tell,
            )
            await self._adopt(backends)
            group.start_soon(reaper.run, self._is_held)
            group.start_soon(self._stop_the_forgotten)
            group.start_soon(self._logs.run)
            task_status.started()

    def _backends(self) -> dict[str, Backend]:
        """By name; the first starts new engines, all of them adopt."""
        tree = cgroup.delegated()
        found: dict[str, Backend] = {"process": Processes(self._ledger, tree)}
        wanted = self._settings.backend
        if wanted == "process" or not systemd.is_there():
            if wanted == "systemd":
                self._problem("supervisor_backend", NO_SYSTEMD)
            return found
        units: dict[str, Backend] = {"systemd": Units(self._ledger)}
        # With a tree of its own the agent limits each engine as its replica asks.
        if wanted == "systemd" or tree is None:
            return units | found
        return found | units

    async def _adopt(self, backends: dict[str, Backend]) -> None:
        assert self._tools
        found = await adopt.survey(self._ledger, backends)
        for entry, engine in (*found.alive, *found.strays):
            self._ports.adopt(entry.launch.ports)
            self._keep(Keeper(self._tools, None, (entry, engine)))
        for bad in found.unreadable:
            self._problem(
                "ledger_unreadable",
                EngineError(
                    f"cannot be used: {bad.reason}",
                    where=str(bad.path),
                    fix="it was set aside; its engine is found by its copy or its tag",
                ),
            )
        if found.partly:
            each = (f"{p.name}: {', '.join(m)}" for p, m in found.partly.items())
            self._problem(
                "ledger_partly",
                EngineError(
                    f"is understood in part, and its engines are kept by the rest: not "
                    f"understood are {'; '.join(each)}",
                    where=str(next(iter(found.partly)).parent),
                    fix="another version of llmgw wrote it; that one reads it whole",
                ),
            )
        for entry in found.gone:
            log.info("engine gone replica=%s pid=%s", entry.id, entry.identity.pid)

    # What others ask ----------------------------------------------------------------

    def statuses(self) -> tuple[wire.ReplicaStatus, ...]:
        """Of all that is wanted, that runs, or that stopped a little while ago."""
        now = time.monotonic()
        for id, keeper in list(self._keepers.items()):
            if keeper.state == "stopped" and now - keeper.since > REMEMBERED:
                del self._keepers[id]
        return tuple(keeper.status() for keeper in self._keepers.values())

    def want(self, order: Order) -> None:
        """Starts it, or hands what runs already its order.

        EngineError if the id is still held by another wish: that is to be stopped
        first.
        """
        assert self._tools, "the supervisor runs before it is asked for anything"
        held = self._keepers.get(order.id)
        if held and not held.is_over:
            if held.digest != order.digest or held.state == "stopping":
                raise EngineError(
                    f"{order.id} is still {held.state} as it was wanted before"
                )
            held.take(order)
            return
        if held and held.state == "failed" and held.digest == order.digest:
            return
        keeper = Keeper(self._tools, order)
        left = self._forgotten_in(order.stop_after)
        if left is not None and left <= 0:
            keeper.park(FORGOTTEN)
            self._keepers[order.id] = keeper
            return
        self._keep(keeper)

    def unwant(self, id: str, reason: str | None = None) -> None:
        """Stops it for good; returns at once."""
        keeper = self._keepers.get(id)
        if keeper is None:
            return
        if keeper.is_over:
            del self._keepers[id]
            self._tell()
            return
        keeper.stop(reason)

    async def stop_all(self) -> None:
        """Returns once nothing runs any more."""
        for id in list(self._keepers):
            self.unwant(id, "the agent was told to stop its engines")
        seen = -1
        while any(not keeper.is_over for keeper in self._keepers.values()):
            seen, _ = await self.changed.newer_than(seen)

    def log_path(self, id: str) -> Path:
        return files.log_path(self._state_dir, id)

    def logged(self) -> tuple[str, ...]:
        """The ids that have a log, also of what ran here before. Looks at the disk."""
        return files.logged(self._state_dir)

    def log(
        self, id: str, *, lines: int = 100, follow: bool = False
    ) -> AsyncGenerator[bytes]:
        """The end of what it wrote, and with *follow* what it goes on to write."""
        return self._logs.read(self.log_path(id), lines=lines, follow=follow)

    def problems(self) -> tuple[wire.Problem, ...]:
        now = time.monotonic()
        if self._ledger.tag:  # it could be written since
            self._problems.pop(STATE_DIR, None)
        return tuple(
            wire.Problem(
                code=problem.code,
                severity=problem.severity,
                what=problem.what,
                where=problem.where,
                fix=problem.fix,
                since_s=round(now - since, 1),
            )
            for since, problem in self._problems.values()
        )

    # Without a control plane --------------------------------------------------------

    def connected(self, is_connected: bool) -> None:
        """Whether a control plane has us. From the start, none has.

        A replica whose `stop_after` has passed without one is stopped, and started
        again only when it is wanted once more while there is one: meanwhile the other
        side may have started it elsewhere.
        """
        if is_connected == (self._alone_since is None):
            return
        self._alone_since = None if is_connected else time.monotonic()
        self._tell()

    def _forgotten_in(self, stop_after: float | None) -> float | None:
        """Seconds until it has been alone for too long; None: never."""
        if stop_after is None:
            stop_after = self._settings.disconnect_stop_after
        if self._alone_since is None or stop_after is None:
            return None
        return self._alone_since + stop_after - time.monotonic()

    async def _stop_the_forgotten(self) -> None:
        while True:
            seen = self.changed.number
            soonest = float("inf")
            for keeper in self._keepers.values():
                left = self._forgotten_in(keeper.stop_after)
                if left is None or keeper.is_over:
                    continue
                if left <= 0:
                    keeper.stop(FORGOTTEN)
                else:
                    soonest = min(soonest, left)
            with anyio.move_on_after(soonest):
                await self.changed.newer_than(seen)

    # Small things -------------------------------------------------------------------

    def _keep(self, keeper: Keeper) -> None:
        assert self._group
        self._keepers[keeper.id] = keeper
        self._group.start_soon(keeper.run, name=f"keeper {keeper.id}")
        self._tell()

    def _is_held(self, pid: int) -> bool:
        return any(keeper.pid == pid for keeper in self._keepers.values())

    def _tell(self) -> None:
        self.changed.set(self.changed.value + 1)

    def _problem(self, code: str, error: EngineError) -> None:
        log.error("%s %s", code, error)
        self._problems[code] = (
            time.monotonic(),
            wire.Problem(
                code=code,
                severity="error",
                what=error.what,
                where=error.where or None,
                fix=error.fix or None,
            ),
        )
