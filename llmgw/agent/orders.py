"""From what is wanted to what the supervisor runs: an order, prepared when it starts.

Nothing is fetched or chosen when the order is given. The keeper calls `prepare` each
time it starts the engine, so that a replica that keeps crashing sees a build that was
installed meanwhile, and its CPU share is that of the moment.
"""

import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from msgspec import Struct

from llmgw import engines
from llmgw.config import keys
from llmgw.engines import group, installed, threads
from llmgw.engines.place import Build, Place
from llmgw.errors import EngineError
from llmgw.reconcile import Keep, Start, restart
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.supervisor import Order
from llmgw.wire import Disconnect, Model, Progress, Replica, Restart

Report = Callable[[Progress], None]

# Of seconds and tries: what is more was not meant, and no clock takes it.
MOST = 2.0**63


class Here(Struct, frozen=True, kw_only=True):
    """What the node is at the moment an engine starts.

    *host* is the address engines bind and are asked on, *interface* the one NCCL
    bootstraps over, *hcas* those of each fabric, *gpus* CUDA's numbers by uuid, and
    *cpu_replicas* how many engines share the CPUs.
    """

    host: str
    interface: str | None
    cpus: threads.Cpus
    cpu_replicas: int
    hcas: Mapping[str, tuple[str, ...]] = {}
    gpus: dict[str, int] = {}


class Fetcher(Protocol):
    """Brings weights onto this node; `Weights` is one."""

    async def ensure(
        self, source: str, digest: str | None, progress: Report
    ) -> Path: ...


class Orders:
    """Writes orders with the node's settings; `config` may be set anew at any time."""

    def __init__(
        self,
        config: keys.Config,
        weights: Fetcher,
        here: Callable[[], Here],
        settled: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self.config = config
        self._weights = weights
        self._here = here
        self._cpusets: dict[str, tuple[int, ...]] = {}
        self._settled = settled

    def keep_only(self, ids: Collection[str]) -> None:
        """The CPUs of replicas that are not among *ids* are free for others."""
        self._cpusets = {i: cpus for i, cpus in self._cpusets.items() if i in ids}

    def order(self, start: Start | Keep) -> Order:
        """What the supervisor keeps running for *start*, under its name."""
        replica = start.wanted.replica
        again, alone = restart(replica), replica.disconnect
        try:
            _check_times(replica)
        except EngineError:
            # Refused when it is prepared. What runs already is kept as this node does.
            again = alone = None
        stop_after = self.config.supervisor.disconnect_stop_after
        if alone is not None:
            stop_after = alone.stop_after
        return Order(
            id=start.name,
            generation=replica.generation,
            digest=start.wanted.digest,
            prepare=partial(self._prepare, replica),
            ports=_ports(replica),
            port=_port(replica),
            host=self._here().host,
            restart=again,
            stop_after=stop_after,
        )

    async def _prepare(
        self, replica: Replica, ports: Mapping[str, int], report: Report
    ) -> Launch:
        """Everything the engine needs, then exactly what to execute.

        EngineError if this node does not allow it or lacks a build; WeightsError.
        """
        config, here = self.config, self._here()
        _check_times(replica)
        # Before a byte is fetched: what is not allowed here is not allowed later.
        settings = engines.admit(replica, config.engines)
        await self._settled(replica.build)
        # A dead file system below engines_dir holds this replica's start, and no more.
        build = await anyio.to_thread.run_sync(
            self._build, replica, abandon_on_cancel=True
        )
        weights = await self._fetch(replica, report)
        await group.reachable(
            engines.awaits(replica),
            report,
            within=config.supervisor.start_timeout,
        )
        share = threads.share(
            here.cpus,
            here.cpu_replicas,
            override=config.engines.llamacpp.threads,
            asked=replica.cpus,
            taken=[c for name, c in self._cpusets.items() if name != replica.id],
        )
        if share.cpuset is not None and threads.is_cpu_replica(replica):
            self._cpusets[replica.id] = share.cpuset
        fabric = replica.group.fabric if replica.group else None
        place = Place(
            settings=settings,
            build=build,
            ports=dict(ports),
            host=here.host,
            weights=weights,
            threads=share.count,
            cpuset=share.cpuset if threads.is_cpu_replica(replica) else None,
            interface=here.interface,
            hcas=here.hcas.get(fabric, ()) if fabric else (),
            gpus=here.gpus,
        )
        return engines.launch(replica, place)

    def _build(self, replica: Replica) -> Build:
        folder = Path(self.config.engines_dir)
        found = installed.survey(folder, self.config.engines)
        build = installed.choose(found.builds, replica)
        if not os.access(build.binary, os.X_OK) or not Path(build.binary).is_file():
            there = Path(build.binary).exists()
            raise EngineError(
                "is no program that may be executed" if there else "is not there",
                where=build.binary,
                fix=f"install the build again, or set engines.{replica.engine}.path",
            )
        return build

    async def _fetch(self, replica: Replica, report: Report) -> dict[str, str]:
        """Where each of the replica's files lies, by source."""
        found: dict[str, str] = {}
        for model in files_of(replica):
            source = model.source or model.path or ""
            if model.path:
                found[source] = await anyio.to_thread.run_sync(
                    self._local, model.path, abandon_on_cancel=True
                )
            elif model.source:
                path = await self._weights.ensure(model.source, model.digest, report)
                found[source] = str(path)
        return found

    def _local(self, path: str) -> str:
        """A file that lies here already; a control plane names none outside of the
        model directories. A link in them may lead out: the operator laid it.
        """
        named = Path(path)
        roots = [Path(folder) for folder in self._model_dirs()]
        is_inside = any(named.is_relative_to(root) for root in roots)
        if not is_inside or ".." in named.parts:
            raise EngineError(
                f"the model {path} is in no model directory of this node",
                where="model.path",
                fix="put its folder into model_dirs in the node's file",
            )
        if not named.exists():
            raise EngineError(f"there is no model at {path}", where="model.path")
        return str(named)

    def _model_dirs(self) -> tuple[str, ...]:
        cache = self.config.weights_cache
        return (*self.config.model_dirs, *((cache,) if cache else ()))


def files_of(replica: Replica) -> tuple[Model, ...]:
    """All the weights that it needs."""
    loras = (
        Model(name=lora.source, source=lora.source, digest=lora.digest)
        for lora in replica.lora
    )
    return (*filter(None, (replica.model, replica.mmproj)), *loras)


def _check_times(replica: Replica) -> None:
    """EngineError if it names a time, or a number of tries, that there is not."""
    again, alone = replica.restart or Restart(), replica.disconnect or Disconnect()
    for where, least, said in (
        ("restart.base_s", 0, again.base_s),
        ("restart.max_s", 0, again.max_s),
        ("restart.crash_loop_after", 1, again.crash_loop_after),
        ("disconnect.stop_after", 0, alone.stop_after),
    ):
        if said is not None and not least <= said <= MOST:
            raise EngineError(
                f"{said} is less than {least} or more than {MOST:g}", where=where
            )


def _ports(replica: Replica) -> tuple[str, ...]:
    """What ports it needs; an engine that this agent does not know needs none, and is
    refused when it is prepared.
    """
    try:
        return engines.ports(replica)
    except EngineError:
        return ("api",)


def _port(replica: Replica) -> int | None:
    """The number that was agreed on for the first of them."""
    try:
        return engines.port(replica)
    except EngineError:  # of a group that contradicts itself; refused when prepared
        return replica.port
