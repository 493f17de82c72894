"""The agent: composes the parts, and performs what reconcile decides.

link         sets `desired`; sends what the view says
reconcile    waits for news, plans, performs
supervisor   one keeper per replica
weights      fetches in a child
inventory    surveys now and then
signals      SIGTERM leaves, SIGHUP reads the file again
"""

import logging
import signal
from pathlib import Path

import anyio
import anyio.abc

from llmgw import version
from llmgw.agent.inventory import Inventory
from llmgw.agent.notify import Systemd
from llmgw.agent.orders import Here, Orders, files_of
from llmgw.agent.person import Draining, Person
from llmgw.agent.reload import Reader, needs_link, reread
from llmgw.agent.resolve import Resolved
from llmgw.agent.view import View
from llmgw.aio import Latest
from llmgw.discovery import node
from llmgw.engines import threads
from llmgw.engines.group import fabric_hcas
from llmgw.engines.provision import Provision
from llmgw.errors import EngineError
from llmgw.reconcile import Action, Running, Start, Stop, plan, replica_id
from llmgw.session.link import Link
from llmgw.session.node import Desired, Identity, LinkStatus
from llmgw.supervisor.supervisor import Supervisor
from llmgw.tls import Certificates
from llmgw.weights.fetch import Weights
from llmgw.wire import Problem, Wanted

log = logging.getLogger(__name__)


class Agent:
    """One node's daemon. `run` ends on SIGTERM, or when cancelled.

    Either way the engines stay for the next agent to adopt, unless it was SIGTERM and
    the file says `supervisor.on_stop = "stop"`. *read* reads the file again. Whoever
    makes an Agent holds its state directory (`kept.held`).
    """

    def __init__(self, resolved: Resolved, *, read: Reader) -> None:
        config = resolved.config
        self.resolved = resolved
        self.state_dir = Path(config.state_dir)
        self.supervisor = Supervisor(
            config.supervisor,
            self.state_dir,
            adopt_ready_timeout=config.adopt_ready_timeout,
        )
        self.inventory = Inventory(config)
        self.weights = Weights(
            config.weights,
            Path(config.weights_cache or ""),
            tuple(map(Path, config.model_dirs)),
        )
        self.provision = Provision(Path(config.engines_dir), config.engines)
        self.view = View(config, self.supervisor, self.inventory, node.interface_of)
        self.view.build_problems = self.provision.problems
        self.link = self._link()
        self.desired: Desired | None = None
        self.person = Person(self.state_dir, self.supervisor, self._wanted, self.touch)
        self._orders = Orders(config, self.weights, self._here, self.provision.settled)
        self._read = read
        self._systemd = Systemd()
        self._news = Latest(0)
        self._said = Latest[Desired | None](None)
        self._relink = anyio.Event()
        self._leaving = anyio.Event()
        self._reloading = anyio.Lock()

    # The life of it --------------------------------------------------------------

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._systemd.run)
            await group.start(self.supervisor.run)
            group.start_soon(self.inventory.run)
            group.start_soon(self.weights.run)
            group.start_soon(self.provision.run)
            group.start_soon(self._hold_weights)
            group.start_soon(self._reconcile)
            group.start_soon(self._follow, self.supervisor.changed)
            group.start_soon(self._follow, self.inventory.changed)
            group.start_soon(self._follow, self.provision.changed)
            group.start_soon(self._follow, self.provision.installed, "builds")
            group.start_soon(self._follow, self.weights.fetched, "models")
            group.start_soon(self._keep_link)
            self._systemd.ready()
            log.info("agent ready node_id=%s", self.resolved.config.node_id)
            task_status.started()
            await self._leaving.wait()
            self._systemd.stopping()
            await self._leave()
            group.cancel_scope.cancel()

    async def signals(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Obey signals until cancelled, for a program that has nothing else to do.

        Also while it leaves, and while a file is read again: to end at once would leave
        an engine half stopped, and the file may lie on a mount that is dead.
        """
        with anyio.open_signal_receiver(
            signal.SIGTERM, signal.SIGINT, signal.SIGHUP
        ) as signals:
            async with anyio.create_task_group() as group:
                task_status.started()
                async for number in signals:
                    if number != signal.SIGHUP:
                        self._leaving.set()
                    elif not self._leaving.is_set():
                        group.start_soon(self.reload)

    def leave(self) -> None:
        """As SIGTERM does."""
        self._leaving.set()

    async def _leave(self) -> None:
        stop = self.resolved.config.supervisor.on_stop == "stop"
        if stop:
            await self.supervisor.stop_all()
        await self.link.goodbye("shutdown", "stopped" if stop else "left_running")
        log.info("agent leaves engines=%s", "stopped" if stop else "left_running")

    # The link --------------------------------------------------------------------

    async def _keep_link(self) -> None:
        """One link after another: a changed file makes a new one, engines untouched."""
        while True:
            self._relink = anyio.Event()
            async with anyio.create_task_group() as group:
                await group.start(self.link.run)
                group.start_soon(self._take_desired, self.link)
                group.start_soon(self._tell_status, self.link)
                await self._relink.wait()
                group.cancel_scope.cancel()
            self.link = self._link()

    def _link(self) -> Link:
        config, written = self.resolved.config, self.resolved.written
        self.certificates = (
            Certificates(config.tls, config.node_id or "")
            if config.tls.enabled
            else None
        )
        identity = Identity(
            node_id=config.node_id or "",
            version=version(),
            mgmt_addr=written.mgmt_addr,
            mgmt_interface=written.mgmt_interface,
        )
        return Link(
            identity,
            config.servers,
            self.certificates,
            config.link,
            self.view,
            self.state_dir,
            heartbeat=config.heartbeat_interval,
            reconnect_base=config.reconnect_base,
            reconnect_max=config.reconnect_max,
        )

    async def _take_desired(self, link: Link) -> None:
        seen = -1
        while True:
            seen, desired = await link.desired.newer_than(seen)
            if desired is not None and not (desired.kept and self.desired):
                self.desired = desired
                self.provision.wanted.set(desired.builds)
                self._orders.keep_only({one.replica.id for one in desired.wanted})
                self.touch()
                if not desired.kept:
                    self._said.set(desired)

    async def _hold_weights(self) -> None:
        """Tell what must not be evicted. On its own: the cache may be a dead filer."""
        seen = self._said.number
        while True:
            seen, desired = await self._said.newer_than(seen)
            assert desired is not None
            models = [m for one in desired.wanted for m in files_of(one.replica)]
            await self.weights.hold(m.source for m in models if m.source)

    async def _tell_status(self, link: Link) -> None:
        seen = -1
        while True:
            seen, status = await link.status.newer_than(seen)
            self._tell_systemd(status)
            # Counts for a replica's stop_after: a session, not an attempt at one.
            self.supervisor.connected(status.state == "connected")

    def _tell_systemd(self, status: LinkStatus) -> None:
        """A reload of the unit succeeds whatever the file says: its state has it."""
        line, wrong = _said(status), self.view.own_problems.get("reload")
        if wrong:
            line = f"{line}; {wrong.where}: {wrong.what}"
        self._systemd.status(" ".join(line.split()))

    # Reconciling -----------------------------------------------------------------

    def touch(self) -> None:
        """Something that reconciling or the control plane should see is new."""
        self._news.set(self._news.value + 1)
        self.view.touch()

    async def _follow(self, news: Latest[int], *facts: str) -> None:
        """*facts*: what has to be looked at again after such news."""
        seen = news.number
        while True:
            seen, _ = await news.newer_than(seen)
            self.inventory.refresh(*facts)
            for replica, text in self.view.news():
                self.link.events.add("replica", text, replica=replica)
            self.touch()

    async def _reconcile(self) -> None:
        seen = -1
        while True:
            with anyio.move_on_after(self.person.until_drained()):
                seen, _ = await self._news.newer_than(seen)
            if self.desired is not None:
                await self.person.heed(wanted=self.desired.drain)
            if self._leaving.is_set():
                return  # or what is being stopped would be wanted, and started, again
            self.view.draining = self.draining() is not None
            if self.desired is not None:
                for action in self.plan():
                    self._perform(action)
                self.view.rev_applied = self.desired.rev
            self.person.end_of_drain()

    def _wanted(self) -> tuple[Wanted, ...]:
        return self.desired.wanted if self.desired else ()

    def draining(self) -> Draining | None:
        return self.person.draining(wanted=bool(self.desired and self.desired.drain))

    def plan(self) -> tuple[Action, ...]:
        """What is to be done now. Pure, but for where it looks."""
        desired = self.desired
        if desired is None:
            return ()
        held = self.person.stopped
        wanted = tuple(one for one in desired.wanted if one.digest not in held)
        gpus = {one.digest: one.replica.gpus for one in desired.wanted}
        running = tuple(
            Running(
                status.id,
                status.generation,
                status.spec_digest,
                status.state,
                gpus.get(status.spec_digest, ()),
                is_adopted=status.adopted,
            )
            for status in self.supervisor.statuses()
        )
        actions = plan(wanted, running, draining=self.draining() is not None)
        if not desired.kept:
            return actions
        # What was wanted before this start says what to start. To stop what it lacks
        # is a matter of a leader's present word.
        current = {one.name for one in running if one.digest in gpus}
        return tuple(
            action
            for action in actions
            if not isinstance(action, Stop) or action.name in current
        )

    def _perform(self, action: Action) -> None:
        if isinstance(action, Stop):
            log.info("replica stops name=%s", action.name)
            self.supervisor.unwant(action.name)
            return
        replica = action.wanted.replica
        if isinstance(action, Start):
            log.info(
                "replica starts name=%s generation=%d", action.name, replica.generation
            )
        try:
            self.supervisor.want(self._orders.order(action))
        except EngineError as error:
            # Planned from what is no longer so: the next plan sees it.
            log.warning("order passed over name=%s error=%s", action.name, error)

    def _here(self) -> Here:
        config, status = self.resolved.config, self.link.status.value
        wanted = self._wanted()
        return Here(
            host=status.mgmt_addr or config.mgmt_addr or "127.0.0.1",
            interface=status.mgmt_interface or config.mgmt_interface,
            cpus=self.inventory.cpus(),
            cpu_replicas=sum(threads.is_cpu_replica(one.replica) for one in wanted),
            hcas={fabric.name: fabric_hcas(fabric) for fabric in config.fabrics},
            gpus=self.inventory.gpu_numbers(),
        )

    # What is wrong with it, and the file ------------------------------------------

    def say_problem(
        self, code: str, what: str | None, fix: str = "", *, where: str = ""
    ) -> None:
        """A problem of the agent itself, for as long as it lasts; None: it is over."""
        if what is None:
            self.view.own_problems.pop(code, None)
        else:
            self.view.own_problems[code] = Problem(
                code=code,
                severity="warning",
                what=what,
                where=where or None,
                fix=fix or None,
            )
        self.touch()

    async def reload(self) -> None:
        """Read the file again: what can change does, the rest is named."""
        async with self._reloading:
            self._systemd.reloading()
            resolved = await reread(self._read, self.say_problem)
            if resolved is not None:
                self._apply(resolved)
                self._forget_failures()
            self._tell_systemd(self.link.status.value)
            self._systemd.ready()
            self.touch()

    def _apply(self, resolved: Resolved) -> None:
        config = resolved.config
        relink = needs_link(self.resolved.config, config, self.say_problem)
        self.resolved = resolved
        self.view.config = config
        self._orders.config = config
        self.inventory.reconfigure(config)
        if relink:
            self._relink.set()

    def _forget_failures(self) -> None:
        """What failed may have failed for what a person has just mended, here or on the
        disk: it is planned anew. A group is its leader's to start again.
        """
        alone = {one.replica.id for one in self._wanted() if not one.replica.group}
        for status in self.supervisor.statuses():
            if status.state == "failed" and replica_id(status.id) in alone:
                self.supervisor.unwant(status.id)


def _said(status: LinkStatus) -> str:
    if status.state == "connected":
        return f"connected to {status.server} (epoch {status.epoch})"
    tried = "; ".join(f"{url}: {why}" for url, why in status.tried.items())
    return f"{status.state}{': ' + tried if tried else ''}"
