"""What the supervisor is asked to keep running."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from llmgw import wire
from llmgw.supervisor.launch import Launch

Prepare = Callable[
    [Mapping[str, int], Callable[[wire.Progress], None]], Awaitable[Launch]
]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One replica, and how its launch is come by.

    *prepare* is given ports by name and something to report progress to. It fetches
    what is missing. An EngineError from it is final: the replica is `failed`; so is a
    WeightsError that says so. *port*: the number wanted for the first of *ports*.
    *stop_after*: seconds without a control plane after which it is stopped; None: as
    the node's own file says.
    """

    id: str
    generation: int
    digest: str
    prepare: Prepare
    ports: tuple[str, ...] = ("api",)
    port: int | None = None
    host: str = "127.0.0.1"
    restart: wire.Restart | None = None
    stop_after: float | None = None
