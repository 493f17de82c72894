"""What people say on the node, also when two say it at once."""

import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.agent import kept
from llmgw.agent.person import Draining, Person
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


def made(state_dir: Path) -> Person:
    """A person on a node where nothing runs, and nothing is wanted."""
    supervisor = Supervisor(keys.Supervisor(), state_dir)
    return Person(state_dir, supervisor, tuple, lambda: None)


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
    await person.drain(0.0)
    before = person.until_drained()
    person.end_of_drain()
    after = person.until_drained()
    await person.drain(60.0)

    assert before <= 0
    assert ended == ["a", "b"]
    assert after == float("inf")
    assert 0 < person.until_drained() <= 60


async def test_a_drain_ends_when_it_was_to_also_after_a_restart(tmp_path: Path) -> None:
    """An agent that was restarted in the midst of it counted from the beginning."""

    def restarted(since: float | None) -> Person:
        kept.write(tmp_path / kept.DRAIN, kept.Drain(stop_after=60.0, since=since))
        return made(tmp_path)

    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    left = [
        (await anyio.to_thread.run_sync(restarted, since)).until_drained()
        for since in (now - 50.0, now - 70.0, now + 1000.0, None)
    ]

    assert 0 < left[0] <= 10
    assert -11 < left[1] <= -10
    assert 59 < left[2] <= 60
    assert 59 < left[3] <= 60


async def test_a_drain_says_who_wants_it_and_when_it_ends(tmp_path: Path) -> None:
    person = await anyio.to_thread.run_sync(made, tmp_path)

    assert person.draining(wanted=False) is None
    assert person.draining(wanted=True) == Draining(by_person=False, by_control=True)
    await person.drain(None)
    assert person.draining(wanted=True) == Draining(by_person=True, by_control=True)
    await person.drain(0.0)
    assert person.draining(wanted=False) == Draining(
        by_person=True, by_control=False, stop_after_s=0.0, ends_in_s=0.0
    )
    await person.undrain(wanted=False)
    assert person.draining(wanted=False) is None
    assert person.draining(wanted=True) is not None


async def test_a_person_undrains_what_the_control_plane_drains_until_its_next(
    tmp_path: Path,
) -> None:
    """docs/protocol.md said so of `drain`, and `llmgw undrain` changed nothing."""
    person = await anyio.to_thread.run_sync(made, tmp_path)
    await person.undrain(wanted=True)
    await person.heed(wanted=True)
    restarted = await anyio.to_thread.run_sync(made, tmp_path)
    passed_over = restarted.draining(wanted=True)
    await restarted.heed(wanted=False)
    anew = restarted.draining(wanted=True)
    once_more = await anyio.to_thread.run_sync(made, tmp_path)

    assert person.draining(wanted=True) is None
    assert passed_over is None
    assert anew is not None
    assert once_more.draining(wanted=True) is not None


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
    was_held = [await restarted.hold("a", held=False) for _ in range(2)]

    assert held == (wanted,)
    assert was_held == [True, False]
    assert restarted.held() == restarted.stopped == ()
    with pytest.raises(LlmgwError, match='no replica "b" here'):
        await restarted.hold("b", held=False)


@pytest.mark.parametrize("damage", [b"", b"\x00" * 40, b'{"stop_af', None])
async def test_a_drain_that_cannot_be_read_is_one_until_a_person_ends_it(
    tmp_path: Path, damage: bytes | None
) -> None:
    """It was put aside, and the next agent started all that was wanted."""
    first = made(tmp_path)
    await first.drain(60.0)
    path = anyio.Path(tmp_path / "drain.json")
    await path.unlink()
    if damage is None:
        await path.mkdir()
    else:
        await path.write_bytes(damage)

    said = Draining(by_person=True, by_control=False)
    once = await anyio.to_thread.run_sync(made, tmp_path)
    person = await anyio.to_thread.run_sync(made, tmp_path)
    assert once.draining(wanted=False) == person.draining(wanted=False) == said
    assert person.until_drained() == float("inf")
    await person.undrain(wanted=False)

    assert person.draining(wanted=False) is None
    assert not await path.exists()
