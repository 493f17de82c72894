"""What the supervisor is told to keep running, of what a control plane wants."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.orders import Here, Orders
from llmgw.config import keys
from llmgw.engines import threads
from llmgw.errors import EngineError
from llmgw.reconcile import Start
from llmgw.wire import Disconnect, Progress, Replica, Restart, Wanted

CPUS = threads.Cpus(allowed=(0,))


class Nothing:
    async def ensure(
        self, source: str, digest: str | None, progress: Callable[[Progress], None]
    ) -> Path:
        raise AssertionError("refused before that")


async def settled(build: str | None) -> None:
    raise AssertionError("refused before that")


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        ({"restart": Restart(base_s=-1.0)}, "restart.base_s"),
        ({"restart": Restart(max_s=-1e-9)}, "restart.max_s"),
        ({"restart": Restart(max_s=1e308)}, "restart.max_s"),
        ({"restart": Restart(crash_loop_after=0)}, "restart.crash_loop_after"),
        ({"disconnect": Disconnect(stop_after=-5.0)}, "disconnect.stop_after"),
        ({"disconnect": Disconnect(stop_after=float("nan"))}, "disconnect.stop_after"),
    ],
)
async def test_a_time_that_cannot_be_fails_its_replica_and_ends_nothing(
    wish: dict[str, Any], where: str
) -> None:
    """A negative wait ended the agent; a limit long passed ends an engine."""

    here = Here(host="127.0.0.1", interface=None, cpus=CPUS, cpu_replicas=1)
    orders = Orders(
        keys.Config(servers=("http://cp1",)), Nothing(), lambda: here, settled
    )
    replica = Replica(id="a", generation=1, engine="command", **wish)

    order = orders.order(Start(Wanted(replica, "d"), "a"))

    assert (order.restart, order.stop_after) == (None, None)
    with pytest.raises(EngineError, match=where):
        await order.prepare({}, lambda progress: None)
