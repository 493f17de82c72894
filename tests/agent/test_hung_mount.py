"""A model directory on a mount that answers no longer, down to the kernel."""

import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.agent import probes
from llmgw.agent.inventory import Inventory
from llmgw.config.keys import Config, Discovery
from llmgw.supervisor import procfs
from tests.fakes import hung_mount
from tests.fakes.hung_mount import HungMount
from tests.weights.test_gguf import model

pytestmark = pytest.mark.skipif(
    bool(hung_mount.why_not()), reason=hung_mount.why_not() or "-"
)


def asleep() -> list[int]:
    """Children of this process that no signal ends."""
    return [
        one.pid
        for one in procfs.everyone()
        if one.parent == os.getpid() and one.state == "D"
    ]


async def test_the_last_list_stands_while_a_mount_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T79: the scan is killed at its deadline, and does not die of it; since when is
    told, and no second one is put beside it. Then the mount is back.
    """
    monkeypatch.setattr(probes, "SCAN_TIMES", 1)
    monkeypatch.setattr(probes, "SCAN_LEAST", 2.0)
    content = await anyio.to_thread.run_sync(
        lambda: model(tmp_path / "made.gguf").read_bytes()
    )
    with HungMount(tmp_path / "lustre", "a.gguf", content) as mount:
        config = Config(
            servers=(),
            model_dirs=(str(mount.folder),),
            engines_dir=str(mount.folder / "engines"),
            state_dir=str(tmp_path),
            discovery=Discovery(probe_timeout=2.0),
        )
        inventory = Inventory(config)
        for name in ("models", "disks", "builds"):
            await inventory.ask(name)
        first = inventory.facts()
        assert [one["path"] for one in inventory.value("models")] == [
            f"{mount.folder}/a.gguf"
        ]
        assert inventory.value("disks")[0]["filesystem"] == "fuse.hung"
        mount.hang()

        async with anyio.create_task_group() as group:
            group.start_soon(inventory.ask, "models")
            group.start_soon(inventory.ask, "builds")
        hung = await anyio.to_thread.run_sync(asleep)
        await inventory.ask("models")
        with anyio.fail_after(1):  # nothing of it is in the way of the others
            await inventory.ask("memory")

        assert len(hung) == 2
        assert await anyio.to_thread.run_sync(asleep) == hung
        fact = inventory.facts().facts["models"]
        assert fact.value == first.facts["models"].value
        assert fact.age_s > first.facts["models"].age_s
        assert "has not answered" in (fact.reason or "")
        problems = inventory.problems()
        assert {(one.code, one.where) for one in problems} == {
            ("probe_hung", "models"),
            ("probe_hung", "builds"),
        }
        assert all((one.since_s or 0.0) >= 2.0 for one in problems)
        await anyio.to_thread.run_sync(mount.wake)
        with anyio.fail_after(10):
            while inventory.problems():
                await anyio.sleep(0.01)
                await inventory.ask("models")
                await inventory.ask("builds")
        again = inventory.facts().facts["models"]
        assert (again.value, again.reason) == (first.facts["models"].value, None)
        assert await anyio.to_thread.run_sync(asleep) == []
