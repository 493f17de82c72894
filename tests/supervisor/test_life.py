"""A replica's life, with real processes."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from llmgw import wire
from llmgw.errors import EngineError, WeightsError
from llmgw.supervisor.launch import Launch
from tests.supervisor.conftest import gone, is_alive, living, node, order


async def test_an_engine_starts_becomes_ready_and_stops(state_dir: Path) -> None:
    """T15: ready is said after a real 200 and not before."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--ready-after", "0.3"))
        starting = await here.until(lambda s: s.state == "starting" and bool(s.pid))
        ready = await here.state("ready")
        here.supervisor.unwant("fake-0")
        stopped = await here.state("stopped")

        assert starting.pid == ready.pid
        assert ready.address == "127.0.0.1"
        assert ready.ports.keys() == {"api"}
        assert ready.adopted is False
        assert stopped.exit is not None
        assert stopped.exit.code == 0
        assert stopped.pid is None
        assert not await living(state_dir)
        assert not list((state_dir / "ledger").iterdir())


async def test_an_engine_that_ignores_the_request_is_killed(state_dir: Path) -> None:
    async with node(state_dir, stop_grace=0.2) as here:
        here.supervisor.want(order("fake-0", "--ignore-term"))
        await here.state("ready")
        here.supervisor.unwant("fake-0")
        stopped = await here.state("stopped")

        assert stopped.exit is not None
        assert stopped.exit.signal == signal.SIGKILL


async def test_leaving_leaves_the_engine_and_the_next_adopts_it(
    state_dir: Path,
) -> None:
    """T50: the same process serves on; its exit status is not known and is said so."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
    async with node(state_dir) as here:
        adopted = await here.state("ready")
        here.supervisor.want(order())
        here.supervisor.unwant("fake-0")
        stopped = await here.state("stopped")

        assert (adopted.pid, adopted.adopted) == (before.pid, True)
        assert adopted.ports == before.ports
        assert adopted.spec_digest == "d1"
        assert stopped.exit is not None
        assert not await living(state_dir)


async def test_an_exit_during_start_is_seen_at_once_with_its_last_lines(
    state_dir: Path,
) -> None:
    """T55: not after the start deadline."""
    async with node(state_dir, start_timeout=60.0, restart_base=5.0) as here:
        here.supervisor.want(
            order(
                "fake-0",
                *("--say", "no such model: x.gguf", "--ready-after", "60"),
                *("--exit-after", "0.1", "--exit-code", "3"),
            )
        )
        down = await here.state("backoff", within=1.5)

        assert down.exit is not None
        assert down.exit.code == 3
        assert down.reason is not None
        assert "code 3" in down.reason
        assert "no such model: x.gguf" in down.reason


async def test_failing_again_and_again_is_a_crash_loop_until_a_new_order(
    state_dir: Path,
) -> None:
    """T61: the tries slow down to the cap and are called what they are."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", argv=("/bin/false",), health=None))
        looping = await here.state("crash_loop")
        here.supervisor.unwant("fake-0")
        await here.state("stopped")
        here.supervisor.want(order(digest="d2", generation=2))
        ready = await here.state("ready")

        assert looping.restarts >= 4
        assert ready.restarts == 0


async def test_one_that_served_and_fell_is_started_again_at_once(
    state_dir: Path,
) -> None:
    async with node(state_dir, restart_base=30.0, restart_max=60.0) as here:
        here.supervisor.want(order())
        first = await here.state("ready")
        assert first.pid
        os.kill(first.pid, signal.SIGKILL)
        second = await here.until(lambda s: s.state == "ready" and s.pid != first.pid)

        assert second.restarts == 1
        assert second.ports == first.ports


@pytest.mark.parametrize("kind", ["plain", "setsid", "double"])
async def test_what_a_killed_engine_leaves_behind_is_ended_before_the_next(
    state_dir: Path, kind: str
) -> None:
    """T52, T53, T54: it holds the GPU, whatever its session, parent and name are."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--child", kind))
        first = await here.state("ready")
        left = [s.pid for s in await living(state_dir) if s.pid != first.pid]
        assert first.pid
        os.kill(first.pid, signal.SIGKILL)
        await here.until(lambda s: s.state == "ready" and s.pid != first.pid)

        assert left
        for pid in left:
            assert not await is_alive(pid)


async def test_a_stop_takes_the_grandchildren_along(state_dir: Path) -> None:
    async with node(state_dir, stop_grace=0.2) as here:
        here.supervisor.want(order("fake-0", "--child", "double"))
        await here.state("ready")
        here.supervisor.unwant("fake-0")
        await here.state("stopped")

        assert not await living(state_dir)


async def test_an_id_is_held_until_the_engine_is_gone(state_dir: Path) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
        with pytest.raises(EngineError, match="still ready"):
            here.supervisor.want(order(digest="d2"))


async def test_stop_all_returns_when_nothing_runs(state_dir: Path) -> None:
    async with node(state_dir) as here:
        for number in range(3):
            here.supervisor.want(order(f"fake-{number}"))
        pids = [(await here.state("ready", f"fake-{n}")).pid for n in range(3)]
        await here.supervisor.stop_all()

        for pid in pids:
            assert pid
            await gone(pid)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (WeightsError("is not there"), "failed"),
        (WeightsError("reset", final=False), "backoff"),
        (None, "stopped"),
    ],
)
async def test_what_was_told_of_a_fetch_ends_with_it(
    state_dir: Path, error: WeightsError | None, state: str
) -> None:
    """A stopped replica was `asked again in 12 s` for ten minutes."""

    async def prepare(
        _ports: Mapping[str, int], report: Callable[[wire.Progress], None]
    ) -> Launch:
        report(wire.Progress(what="fetching, asked again in 12 s", done=0))
        if error is not None:
            raise error
        await anyio.sleep_forever()
        raise AssertionError("it sleeps for ever")

    async with node(state_dir, restart_base=30.0, restart_max=60.0) as here:
        here.supervisor.want(replace(order(), prepare=prepare))
        if error is None:
            waits = await here.until(lambda s: s.progress is not None)
            assert waits.state == "fetching"
            here.supervisor.unwant("fake-0")
        over = await here.state(state)

        assert over.progress is None
