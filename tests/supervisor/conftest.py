"""A supervisor over real processes, and the orders that it is given."""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.config import keys
from llmgw.supervisor import procfs
from llmgw.supervisor.launch import Health, Launch
from llmgw.supervisor.ledger import Ledger, tagged
from llmgw.supervisor.order import Order
from llmgw.supervisor.supervisor import Supervisor
from tests.fakes import engine as fake_engine
from tests.fakes.ports import free_block

FAKE = (sys.executable, "-S", fake_engine.__file__)


def settings(**changes: object) -> keys.Supervisor:
    """Quick ones, on ports that no test beside this one is given."""
    start = free_block(50)
    quick: dict[str, object] = {
        "backend": "process",
        "stop_grace": 5.0,
        "restart_base": 0.05,
        "restart_max": 0.2,
        "crash_loop_after": 4,
        "start_timeout": 10.0,
        "health_interval": 0.05,
        "health_timeout": 1.0,
        "port_range": f"{start}-{start + 49}",
        "port_quarantine": 0.0,
    }
    return keys.Supervisor(**{**quick, **changes})  # pyright: ignore[reportArgumentType]


def order(
    id: str = "fake-0",
    *options: str,
    digest: str = "d1",
    generation: int = 1,
    argv: tuple[str, ...] | None = None,
    health: Health | None = Health(  # noqa: B008 -- frozen
        metrics_path="/metrics",
        progress_metrics=("llamacpp:tokens_predicted_total",),
        requests_metric="llamacpp:requests_processing",
    ),
    **changes: object,
) -> Order:
    """For the fake engine with these options, or for *argv* as it stands."""

    async def prepare(
        ports: Mapping[str, int], _: Callable[[wire.Progress], None]
    ) -> Launch:
        own = (*FAKE, "--port", str(ports["api"]), *options)
        host = str(changes.get("host", "127.0.0.1"))
        return Launch(argv=argv or own, ports=dict(ports), health=health, host=host)

    return Order(
        id=id,
        generation=generation,
        digest=digest,
        prepare=prepare,
        **changes,  # pyright: ignore[reportArgumentType]
    )


class Node:
    """A supervisor that runs, and how a test waits for what it does."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor

    def status(self, id: str = "fake-0") -> wire.ReplicaStatus:
        return next(s for s in self.supervisor.statuses() if s.id == id)

    async def until(
        self,
        true: Callable[[wire.ReplicaStatus], bool],
        id: str = "fake-0",
        within: float = 10.0,
    ) -> wire.ReplicaStatus:
        """The first status of which *true* holds; TimeoutError shows the last one."""
        seen = -1
        try:
            with anyio.fail_after(within):
                while True:
                    for status in self.supervisor.statuses():
                        if status.id == id and true(status):
                            return status
                    seen, _ = await self.supervisor.changed.newer_than(seen)
        except TimeoutError:
            raise TimeoutError(f"still {self.supervisor.statuses()}") from None

    async def state(
        self, wanted: str, id: str = "fake-0", within: float = 10.0
    ) -> wire.ReplicaStatus:
        return await self.until(lambda s: s.state == wanted, id, within)


Running = Callable[..., AbstractAsyncContextManager[Node]]


@asynccontextmanager
async def node(
    state_dir: Path, adopt_ready_timeout: float = 5.0, **changes: object
) -> AsyncGenerator[Node]:
    """A supervisor; left as an agent leaves: the engines stay."""
    supervisor = Supervisor(
        settings(**changes), state_dir, adopt_ready_timeout=adopt_ready_timeout
    )
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        yield Node(supervisor)
        group.cancel_scope.cancel()


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test left running goes with it."""
    state = tmp_path / "state"
    yield state
    tag_file = state / "ledger-tag"
    if tag_file.exists():
        for stats in tagged(tag_file.read_text()).values():
            for stat in stats:
                os.kill(stat.pid, signal.SIGKILL)


async def living(state_dir: Path, id: str = "fake-0") -> list[procfs.Stat]:
    """Every process of this replica, wherever it stands in the tree."""

    def look() -> list[procfs.Stat]:
        ledger = Ledger(state_dir)
        ledger.open()
        return tagged(ledger.tag).get(id, [])

    return await run_sync(look)


async def is_alive(pid: int) -> bool:
    found = await run_sync(procfs.stat, pid)
    return found is not None and found.is_alive


async def gone(pid: int, within: float = 5.0) -> None:
    with anyio.fail_after(within):
        while await is_alive(pid):
            await anyio.sleep(0.01)


async def fact(true: Callable[[], bool | Awaitable[bool]], within: float = 5.0) -> None:
    """Waits for it, looking often; what is no coroutine is asked in a thread."""
    with anyio.fail_after(within):
        while True:
            found = await run_sync(true)
            if found if isinstance(found, bool) else await found:
                return
            await anyio.sleep(0.01)
