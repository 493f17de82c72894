"""An engine outlives the version of llmgw that started it, in both directions."""

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.to_thread import run_sync

from llmgw import wire
from tests.supervisor.conftest import is_alive, living, node, order

Line = dict[str, Any]


async def line(state_dir: Path, change: Line | None = None) -> Line:
    """What the ledger says of fake-0, written anew with the *change*."""

    def rewrite() -> Line:
        path = state_dir / "ledger/fake-0.json"
        said = msgspec.json.decode(path.read_bytes())
        if change is not None:
            path.write_bytes(msgspec.json.encode(change))
        return said

    return await run_sync(rewrite)


async def started(state_dir: Path) -> tuple[wire.ReplicaStatus, Line]:
    async with node(state_dir) as here:
        here.supervisor.want(order())
        status = await here.state("ready")
    return status, await line(state_dir)


NEWER: dict[str, Line] = {
    "version": {"version": 2},
    "field": {"version": 2, "lease": {"of": "GPU"}},
    "backend": {"backend": "podman"},
    "signal": {"launch": {"stop_signal": "QUIT"}},
    "health": {"launch": {"health": {"path": "/health", "probe": 7}}},
    "argv": {"launch": {"argv": {"program": "x"}}},
    "stop_after": {"stop_after": {"seconds": 3}},
    "cgroup": {"cgroup": "/sys/fs/cgroup/llmgw.slice/other-name"},
}


@pytest.mark.parametrize("change", NEWER.values(), ids=NEWER)
async def test_an_engine_that_a_newer_agent_started_is_kept_after_a_downgrade(
    state_dir: Path, change: Line
) -> None:
    """Its line was refused whole: the engine had no digest, and the next snapshot that
    wants it as it is ended it and started another.
    """
    before, said = await started(state_dir)
    launch = {**said["launch"], **change.get("launch", {})}
    await line(state_dir, {**said, **change, "launch": launch})

    async with node(state_dir) as here:
        here.supervisor.want(order())
        kept = await here.state("ready")
        problems = here.supervisor.problems()
        running = await living(state_dir)
        here.supervisor.unwant("fake-0")
        await here.state("stopped")

    assert (kept.pid, kept.spec_digest, kept.adopted) == (before.pid, "d1", True)
    assert [one.pid for one in running] == [before.pid]
    is_known = "backend" in change
    assert [p.code for p in problems] == [] if is_known else ["ledger_partly"]
    assert not await is_alive(before.pid or 0)


async def test_a_newer_agent_finds_its_line_as_it_left_it(state_dir: Path) -> None:
    """After the way back: nothing that it knew was lost on the older one's way."""
    _, said = await started(state_dir)
    newer = {**said, "version": 2, "lease": {"of": "GPU"}}
    await line(state_dir, newer)

    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")

    assert await line(state_dir) == newer


async def test_what_is_known_in_part_is_kept_but_not_started_again_by_it(
    state_dir: Path,
) -> None:
    """One that served is started again at once, of the same launch: of half a launch
    it would be another engine.
    """
    before, said = await started(state_dir)
    half = {**said["launch"], "argv": ["/nowhere"], "stop_signal": "QUIT"}
    await line(state_dir, {**said, "launch": half})

    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
        await kill(before.pid)
        again = await here.until(lambda s: s.state == "ready" and s.pid != before.pid)

    assert again.restarts == 1
    assert (await line(state_dir))["is_whole"] is True


async def kill(pid: int | None) -> None:

    assert pid
    os.kill(pid, signal.SIGKILL)
