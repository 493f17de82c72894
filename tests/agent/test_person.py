"""What people say on the node, also when two say it at once."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.agent import kept
from llmgw.agent.person import Person
from llmgw.config import keys
from llmgw.errors import LlmgwError
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import Replica, ReplicaStatus, Wanted


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
    supervisor = Two(keys.Supervisor(), tmp_path)
    person = Person(tmp_path, supervisor, tuple, lambda: None)

    async def hold(name: str) -> None:
        await person.hold(name, held=True)

    async with anyio.create_task_group() as group:
        group.start_soon(hold, "a")
        group.start_soon(hold, "b")

    assert person.stopped == ("a", "b")
    path = tmp_path / kept.STOPPED
    written = await anyio.to_thread.run_sync(kept.read, path, kept.Stopped)
    assert written == kept.Stopped(digests=("a", "b"))


async def test_a_drain_ends_once_and_then_nobody_waits_for_it(tmp_path: Path) -> None:
    """The agent waited for what was over: it planned without a pause, all its time."""
    ended: list[str] = []

    class Engines(Two):
        def unwant(self, id: str, reason: str | None = None) -> None:
            ended.append(id)

    supervisor = Engines(keys.Supervisor(), tmp_path)
    person = await anyio.to_thread.run_sync(
        Person, tmp_path, supervisor, tuple, lambda: None
    )
    await person.set_drain(kept.Drain(stop_after=0.0))
    before = person.until_drained()
    person.end_of_drain()
    after = person.until_drained()
    await person.set_drain(kept.Drain(stop_after=60.0))

    assert before <= 0
    assert ended == ["a", "b"]
    assert after == float("inf")
    assert 0 < person.until_drained() <= 60


async def test_what_a_person_stopped_starts_again_though_nothing_remembers_it(
    tmp_path: Path,
) -> None:
    """After a restart, ten minutes or a second `stop` it is in no status."""
    wanted = Wanted(Replica(id="a", generation=1, engine="command"), "d1")

    def person() -> Person:
        nothing_runs = Supervisor(keys.Supervisor(), tmp_path)
        return Person(tmp_path, nothing_runs, lambda: (wanted,), lambda: None)

    one = await anyio.to_thread.run_sync(person)
    await one.hold("a", held=True)
    restarted = await anyio.to_thread.run_sync(person)
    held = restarted.held()
    await restarted.hold("a", held=False)

    assert held == (wanted,)
    assert restarted.held() == restarted.stopped == ()
    with pytest.raises(LlmgwError, match="no replica b here; there are: a"):
        await restarted.hold("b", held=False)
