"""An agent without engines, as the link sees it."""

import anyio
import msgspec

from llmgw.aio import Latest
from llmgw.wire import Ask, Fact, Facts, Load, Problem, ReplicaStatus


class FakeNode:
    def __init__(self, hostname: str = "n1") -> None:
        self.hostname = hostname
        self.labels = {"row": "a"}
        self.draining = False
        self.rev_applied: int | None = None
        self.changed = Latest(0)
        self.replicas: tuple[ReplicaStatus, ...] = ()
        self.known = Facts(hash="f1", facts={"os": Fact(source="test", age_s=0)})
        self.asked: list[Ask] = []
        self.amiss: tuple[Problem, ...] = ()
        self.interfaces: dict[str, str] = {}
        self.answers_after = 0.0

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return self.replicas

    def load(self) -> Load:
        return Load(cpu=0.5, memory_used=1)

    def problems(self) -> tuple[Problem, ...]:
        return self.amiss

    def facts(self) -> Facts:
        return self.known

    def interface(self, address: str) -> str | None:
        return self.interfaces.get(address, "lo")

    async def answer(self, ask: Ask) -> bytes:
        self.asked.append(ask)
        await anyio.sleep(self.answers_after)
        return b"answer to " + ask.kind.encode()

    # For tests -------------------------------------------------------------------

    def runs(self, name: str, state: str = "ready", pid: int = 100) -> None:
        status = {
            "id": name,
            "generation": 1,
            "state": state,
            "since_s": 1.0,
            "pid": pid,
            "spec_digest": "d",
        }
        others = tuple(one for one in self.replicas if one.id != name)
        self.replicas = (*others, msgspec.convert(status, ReplicaStatus))
        self.changed.set(self.changed.value + 1)
