"""A full disk, a lost control plane, orphans: what must not end in a lost engine."""

import os
import sys
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from llmgw.supervisor import procfs, systemd
from tests.supervisor.conftest import fact, living, node, order


async def test_an_engine_whose_line_cannot_be_written_never_runs(
    state_dir: Path,
) -> None:
    """It waits at the gate while the line is written, and the gate stays shut.

    A folder where the line's file should be fails the rename, for root too.
    """
    mark = state_dir / "mark"
    argv = ("/bin/sh", "-c", f"touch {mark}; exec sleep 60")
    async with node(state_dir, restart_base=0.1, restart_max=0.1) as here:
        await run_sync((state_dir / "ledger" / "fake-0.json" / "x").mkdir, 0o700, True)
        here.supervisor.want(order("fake-0", argv=argv, health=None))
        down = await here.state("backoff")
        await here.until(lambda s: s.restarts >= 3)

        assert "no engine is started" in (down.reason or "")
        assert "ledger" in (down.reason or "")
        assert not await living(state_dir)
        assert not mark.exists()

        await run_sync((state_dir / "ledger" / "fake-0.json" / "x").rmdir)
        await run_sync((state_dir / "ledger" / "fake-0.json").rmdir)
        await here.state("ready")
        await here.supervisor.stop_all()


async def test_a_state_dir_that_cannot_be_made_is_a_problem_and_nothing_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    async with node(tmp_path / "file" / "state") as here:
        here.supervisor.want(order())
        down = await here.state("backoff")
        problems = here.supervisor.problems()

        assert [(p.code, p.severity) for p in problems] == [("state_dir", "error")]
        assert "state_dir cannot be written" in (down.reason or "")
        here.supervisor.unwant("fake-0")
        await here.state("stopped")


async def test_a_replica_is_stopped_when_it_has_been_alone_for_too_long(
    state_dir: Path,
) -> None:
    """T51: by its own policy; the other side may have started it elsewhere."""
    async with node(state_dir) as here:
        here.supervisor.connected(True)
        here.supervisor.want(order("fake-0", stop_after=0.3))
        here.supervisor.want(order("fake-1"))
        await here.state("ready")
        await here.state("ready", "fake-1")
        here.supervisor.connected(False)
        stopped = await here.state("stopped")
        here.supervisor.want(order("fake-0", stop_after=0.3))
        still = here.status()
        here.supervisor.connected(True)
        here.supervisor.want(order("fake-0", stop_after=0.3))
        await here.state("ready")

        assert "no control plane" in (stopped.reason or "")
        assert still.state == "stopped"
        assert here.status("fake-1").state == "ready"
        assert here.status("fake-1").restarts == 0
        await here.supervisor.stop_all()


async def test_a_short_absence_of_the_control_plane_stops_nothing(
    state_dir: Path,
) -> None:
    """T16: back in time, the clock begins anew."""
    async with node(state_dir, disconnect_stop_after=1.0) as here:
        here.supervisor.connected(True)
        here.supervisor.want(order())
        first = await here.state("ready")
        for _ in range(3):
            here.supervisor.connected(False)
            await anyio.sleep(0.4)  # the absence itself
            here.supervisor.connected(True)
        await anyio.sleep(0.3)

        assert here.status().pid == first.pid
        assert here.status().state == "ready"
        await here.supervisor.stop_all()


async def test_the_wish_outlives_the_agent_that_was_given_it(state_dir: Path) -> None:
    """stop_after counts for an adopted engine too, before anyone gives its order."""
    async with node(state_dir) as here:
        here.supervisor.connected(True)
        here.supervisor.want(order("fake-0", stop_after=0.3))
        await here.state("ready")
    async with node(state_dir) as here:
        await here.state("stopped")

        assert not await living(state_dir)


async def test_no_zombies_after_a_thousand_short_children(state_dir: Path) -> None:
    """T59: an engine forks twice a thousand times; the agent becomes their parent."""
    program = (
        "import os, signal\n"
        "for _ in range(1000):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "print('forked', flush=True)\n"
        "signal.pause()\n"
    )
    argv = (sys.executable, "-S", "-c", program)
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", argv=argv, health=None))
        await here.state("ready")
        log = here.supervisor.log_path("fake-0")
        await fact(lambda: log.read_text() == "forked\n", within=20)
        await fact(_no_zombies, within=15)
        await here.supervisor.stop_all()


async def _no_zombies() -> bool:
    own = os.getpid()

    def look() -> bool:
        return not any(
            stat.parent == own and stat.state == "Z" for stat in procfs.everyone()
        )

    return await run_sync(look)


async def test_a_backend_that_is_not_there_is_said_and_done_without(
    state_dir: Path,
) -> None:
    if await run_sync(systemd.is_there):
        pytest.skip("run where systemd is not PID 1: here the backend is there")
    async with node(state_dir, backend="systemd") as here:
        here.supervisor.want(order())
        await here.state("ready")

        assert [p.code for p in here.supervisor.problems()] == ["supervisor_backend"]
        assert here.supervisor.mode.startswith("process")
        await here.supervisor.stop_all()
