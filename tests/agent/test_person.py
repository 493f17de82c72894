"""What people say on the node, also when two say it at once."""

from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.agent import kept
from llmgw.agent.person import Person
from llmgw.config import keys
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import ReplicaStatus


class Two(Supervisor):
    """Two replicas run."""

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        return tuple(
            ReplicaStatus(
                id=name, generation=1, state="ready", since_s=0.0, spec_digest=name
            )
            for name in ("a", "b")
        )

    def unwant(self, id: str, reason: str | None = None) -> None:
        pass


async def test_two_people_stop_a_replica_each_at_once(tmp_path: Path) -> None:
    """Neither is forgotten: the other's would start again by itself."""
    person = Person(tmp_path, Two(keys.Supervisor(), tmp_path), lambda: None)

    async def hold(name: str) -> None:
        await person.hold(name, held=True)

    async with anyio.create_task_group() as group:
        group.start_soon(hold, "a")
        group.start_soon(hold, "b")

    assert person.stopped == ("a", "b")
    path = tmp_path / kept.STOPPED
    written = await anyio.to_thread.run_sync(kept.read, path, kept.Stopped)
    assert written == kept.Stopped(digests=("a", "b"))
