"""A state directory that takes nothing for a while: said, and over when it is."""

import subprocess
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from tests.fakes.control_plane import ControlPlane
from tests.fakes.hosts import Host
from tests.fakes.linked import running
from tests.fakes.wired import Node, control_plane, node_on

# For `mount -o`: nothing more fits; nothing may be written.
FAULTS = {"full": ("size=4k", "size=1m"), "read-only": ("ro", "rw")}


async def remount(mine: Node, options: str, where: Path) -> None:
    command = ["nsenter", f"--target={mine.pid}", "--mount", "mount", "-o"]
    await anyio.to_thread.run_sync(
        lambda: subprocess.run([*command, f"remount,{options}", where], check=True)
    )


async def said(one: ControlPlane, code: str, *, is_said: bool) -> dict[str, Any]:
    """The problem *code* of a heartbeat that has it; or one that does not."""
    number = len(one.heard("heartbeat"))
    while True:
        number += 1
        problems = (await one.hears("heartbeat", number)).json().get("problems", ())
        found = {problem["code"]: problem for problem in problems}
        if (code in found) == is_said:
            return found.get(code, {})


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_disk_that_takes_nothing_is_said_and_tried_again(
    tmp_path: Path, wired: tuple[Host, Host], fault: str
) -> None:
    """And what it did not take is on it then: the epoch, and what was wanted."""
    node, beyond = wired
    amiss, well = FAULTS[fault]
    state = tmp_path / "state"
    state.mkdir()
    one = control_plane(beyond, "10.77.0.1", epoch=6)
    # In a page more than is left, whatever else the node keeps there.
    one.replicas = [{**one.replicas[0], "env": {"PADDING": "x" * 8192}}]
    mounts = [f"-t tmpfs -o {amiss} tmpfs {state}"]
    async with (
        running(one, limit=20),
        node_on(node, tmp_path, one.url, mounts=mounts) as mine,
    ):
        await mine.until(state="connected", wanted=1)
        problem = await said(one, "state_unwritable", is_said=True)

        await remount(mine, well, state)
        await said(one, "state_unwritable", is_said=False)

        inside = Path(f"/proc/{mine.pid}/root{state}")
        read = anyio.to_thread.run_sync
        kept = await read((inside / "link.json").read_bytes)
        wanted = await read((inside / "desired.json").read_bytes)

    assert problem["severity"] == "error"
    assert problem["where"].startswith(str(state))
    assert b'"epoch":6' in kept
    assert b"PADDING" in wanted
