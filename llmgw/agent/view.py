"""What the link sees of this node, each time it asks."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from llmgw.agent.inventory import Inventory
from llmgw.aio import Latest
from llmgw.config import keys
from llmgw.errors import LlmgwError
from llmgw.reconcile import replica_id
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import Ask, Facts, Load, Problem, ReplicaStatus

Answer = Callable[[Ask], Awaitable[bytes]]


class View:
    """A `Node` as the session knows it. `config` may be set anew at any time."""

    def __init__(
        self,
        config: keys.Config,
        supervisor: Supervisor,
        inventory: Inventory,
        interface: Callable[[str], str | None],
    ) -> None:
        self.config = config
        self.changed = Latest(0)
        self.draining = False
        self.rev_applied: int | None = None
        self._states: dict[str, str] = {}
        self.answers: dict[str, Answer] = {}
        self.own_problems: dict[str, Problem] = {}
        self.build_problems: Callable[[], tuple[Problem, ...]] = tuple
        self._supervisor = supervisor
        self._inventory = inventory
        self._interface = interface

    def touch(self) -> None:
        """Something below says something new."""
        self.changed.set(self.changed.value + 1)

    @property
    def hostname(self) -> str:
        return self.config.hostname or ""

    @property
    def labels(self) -> Mapping[str, str]:
        return self.config.labels

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """As the control plane knows them: by replica. While a successor loads beside
        its predecessor, the one that serves speaks for both.
        """
        found: dict[str, ReplicaStatus] = {}
        for status in self._supervisor.statuses():
            name = replica_id(status.id)
            if name not in found or _weight(status) > _weight(found[name]):
                found[name] = msgspec.structs.replace(status, id=name)
        return tuple(found.values())

    def news(self) -> tuple[tuple[str, str], ...]:
        """Since it was asked last: replicas in another state, and what that is."""
        before = self._states
        now = {one.id: one for one in self.statuses()}
        self._states = {name: one.state for name, one in now.items()}
        return tuple(
            (name, f"{one.state}: {one.reason}" if one.reason else one.state)
            for name, one in now.items()
            if before.get(name) != one.state
        )

    def load(self) -> Load:
        return self._inventory.load()

    def facts(self) -> Facts:
        return self._inventory.facts()

    def problems(self) -> tuple[Problem, ...]:
        return (
            *self.own_problems.values(),
            *self._supervisor.problems(),
            *self._inventory.problems(),
            *self.build_problems(),
        )

    def interface(self, address: str) -> str | None:
        return self._interface(address)

    async def answer(self, ask: Ask) -> bytes:
        if ask.kind not in self.answers:
            known = ", ".join(sorted(self.answers))
            raise LlmgwError(f"this agent cannot answer {ask.kind!r}, only {known}")
        return await self.answers[ask.kind](ask)


_ORDER = (
    "stopped",
    "failed",
    "crash_loop",
    "stopping",
    "pending",
    "fetching",
    "backoff",
    "starting",
    "unhealthy",
    "ready",
    "busy",
)


def _weight(status: ReplicaStatus) -> int:
    return _ORDER.index(status.state)
