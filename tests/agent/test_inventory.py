"""The inventory over this very machine, and over probes that hang."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from llmgw.agent.inventory import Inventory
from llmgw.agent.probes import Probe
from llmgw.config.keys import Config, Discovery
from llmgw.discovery.child import Child, Hung
from llmgw.discovery.found import Found
from llmgw.supervisor import procfs
from tests.agent.test_load import stop


def config(folder: Path, **settings: Any) -> Config:
    return Config(
        servers=("http://127.0.0.1:1",),
        engines_dir=str(folder / "engines"),
        state_dir=str(folder),
        model_dirs=(str(folder),),
        discovery=Discovery(**settings),
    )


async def test_every_fact_has_a_value_or_a_reason(tmp_path: Path) -> None:
    """Of this machine, whatever it is; and none is asked on the event loop."""
    inventory = Inventory(config(tmp_path))

    await inventory.once()
    facts = inventory.facts().facts

    assert {"cpu", "memory", "numa", "gpus", "nics", "hcas", "disks"} < facts.keys()
    for fact in facts.values():
        assert fact.source
        assert fact.value is not None
    assert inventory.value("cpu")["usable"] >= 1
    assert inventory.value("memory")["usable"] > 0
    assert inventory.runs().keys() == facts.keys()


async def test_before_the_first_survey_nothing_is_claimed(tmp_path: Path) -> None:
    inventory = Inventory(config(tmp_path))

    facts = inventory.facts().facts

    assert {fact.reason for fact in facts.values()} == {"not looked at yet"}
    assert inventory.cpus().usable >= 1
    assert inventory.load().cpu is None


class Scripted:
    """A probe that answers as it is told."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.let_go = threading.Event()
        self.let_go.set()
        self.calls = 0
        self.probe = Probe(self.ask, lambda: 60.0, self.deadline)

    def deadline(self) -> float:
        """Only what is told to hang is late: a busy machine took 0.2 s of its own."""
        return 30.0 if self.let_go.is_set() else 0.2

    def ask(self, _: Any) -> Found:
        self.calls += 1
        self.let_go.wait(30)
        return self.found


async def test_the_hash_stays_while_nothing_changes(tmp_path: Path) -> None:
    """Ages, and what stands under `now`, are shown and are no news."""
    gpus = Scripted(Found({"gpus": [{"uuid": "a", "now": {"free": 1}}]}, "fake"))
    inventory = Inventory(config(tmp_path), replaced={"gpus": gpus.probe})
    await inventory.ask("gpus")
    before, number = inventory.facts().hash, inventory.changed.value

    gpus.found = Found({"gpus": [{"uuid": "a", "now": {"free": 2}}]}, "fake")
    await inventory.ask("gpus")
    assert inventory.value("gpus")["gpus"][0]["now"] == {"free": 2}
    assert (inventory.facts().hash, inventory.changed.value) == (before, number)

    gpus.found = Found({"gpus": [{"uuid": "b", "now": {"free": 2}}]}, "fake")
    await inventory.ask("gpus")
    assert inventory.facts().hash != before
    assert inventory.changed.value == number + 1


async def test_a_late_probe_leaves_its_last_answer_standing(tmp_path: Path) -> None:
    """T79, T84: it is named as hung, and no second one is put beside it."""
    gpus = Scripted(Found({"gpus": []}, "fake"))
    inventory = Inventory(config(tmp_path), replaced={"gpus": gpus.probe})
    await inventory.ask("gpus")
    first = inventory.facts()
    gpus.let_go.clear()
    try:
        await inventory.ask("gpus")
        await inventory.ask("gpus")

        fact = inventory.facts().facts["gpus"]
        assert fact.value == {"gpus": []}
        assert "has not answered" in (fact.reason or "")
        assert inventory.facts().hash != first.hash
        assert [p.code for p in inventory.problems()] == ["probe_hung"]
        assert not inventory.runs()["gpus"].ok
        assert gpus.calls == 2
    finally:
        gpus.let_go.set()

    with anyio.fail_after(5):
        while inventory.problems():
            await anyio.sleep(0.01)
            await inventory.ask("gpus")
    assert inventory.facts().hash == first.hash


async def test_what_becomes_unknown_is_not_forgotten(tmp_path: Path) -> None:
    gpus = Scripted(Found({"gpus": []}, "fake"))
    inventory = Inventory(config(tmp_path), replaced={"gpus": gpus.probe})
    await inventory.ask("gpus")
    gpus.found = Found(None, "fake", "the library is gone")

    await inventory.ask("gpus")

    fact = inventory.facts().facts["gpus"]
    assert fact.value == {"gpus": []}
    assert fact.reason == "the library is gone"


async def test_a_running_inventory_says_what_changed(tmp_path: Path) -> None:
    inventory = Inventory(config(tmp_path, interval=60))
    async with anyio.create_task_group() as group:
        with anyio.fail_after(20):
            await group.start(inventory.run)
            seen = inventory.changed.number
            (tmp_path / "more").mkdir()
            inventory.reconfigure(config(tmp_path / "more"))

            await inventory.changed.newer_than(seen)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "no process is to be had"), ValueError("no JSON")]
)
async def test_a_probe_that_cannot_be_asked_is_a_fact_with_the_reason(
    tmp_path: Path, error: Exception
) -> None:
    """At its limit of processes a node keeps its engines, and says what it lacks."""

    def fail(_: Any) -> Found:
        raise error

    probe = Probe(fail, lambda: 60.0, lambda: 30.0)
    inventory = Inventory(config(tmp_path), replaced={"gpus": probe})

    await inventory.ask("gpus")

    assert str(error) in str(inventory.facts().facts["gpus"].reason)


async def test_where_no_thread_is_to_be_had_a_probe_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads count against a limit of processes, too."""
    gpus = Scripted(Found({"gpus": []}, "fake"))
    inventory = Inventory(config(tmp_path), replaced={"gpus": gpus.probe})

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        await inventory.ask("gpus")
    without = inventory.facts().facts["gpus"]
    await inventory.ask("gpus")

    assert "can't start new thread" in str(without.reason)
    assert gpus.calls == 1
    assert inventory.value("gpus") == {"gpus": []}


async def test_a_child_that_hangs_is_ended_with_all_below_it(tmp_path: Path) -> None:
    """T84: nvidia-smi hangs below the process that asked it."""
    child = Child("subprocess", "run")
    mark = tmp_path / "pid"
    script = f"echo $$ > {mark}; exec sleep 60"

    with pytest.raises(Hung):
        await anyio.to_thread.run_sync(child.ask, {"args": ["sh", "-c", script]}, 3.0)

    pid = int(mark.read_text())

    def is_alive() -> bool:
        found = procfs.stat(pid)
        return found is not None and found.is_alive

    with anyio.fail_after(5):
        while await anyio.to_thread.run_sync(is_alive):
            await anyio.sleep(0.01)


async def test_a_child_that_cannot_be_ended_is_not_joined(tmp_path: Path) -> None:
    """T84: asleep in a driver, it outlives SIGKILL; one such process is enough."""
    pids: list[int] = []

    def spare(pid: int, _: int) -> None:
        stop(pid)
        pids.append(pid)

    child = Child("subprocess", "run", kill=spare)
    mark = tmp_path / "started"
    ask = {"args": ["sh", "-c", f"echo >> {mark}; exec sleep 60"]}
    try:
        with pytest.raises(Hung) as first:
            await anyio.to_thread.run_sync(child.ask, ask, 2.0)
        with pytest.raises(Hung) as second:
            await anyio.to_thread.run_sync(child.ask, ask, 2.0)
        assert second.value.since == first.value.since
        assert len(pids) == 1
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)

    quick = {"args": ["sh", "-c", "exit 3"], "check": True}
    with anyio.fail_after(10):
        while True:
            try:
                found = await anyio.to_thread.run_sync(child.ask, quick, 10.0)
            except Hung:
                await anyio.sleep(0.01)
            else:
                break
    assert "exit status 3" in found.reason


async def test_what_a_killed_child_leaves_behind_is_not_joined(tmp_path: Path) -> None:
    """T84: python is gone at once, its nvidia-smi still sleeps in the driver."""
    sessions: list[int] = []

    def leader_only(pid: int, number: int) -> None:
        sessions.append(pid)
        os.kill(pid, number)

    child = Child("subprocess", "run", kill=leader_only)
    ask = {"args": ["sh", "-c", f"echo >> {tmp_path}/started; exec sleep 60"]}
    try:
        for _ in range(2):
            with pytest.raises(Hung):
                await anyio.to_thread.run_sync(child.ask, ask, 2.0)

        assert await anyio.to_thread.run_sync(lambda: child.is_stuck)
        assert (tmp_path / "started").read_text() == "\n"
    finally:
        for session in sessions:
            os.killpg(session, signal.SIGKILL)


def test_a_child_that_dies_is_a_reason() -> None:
    child = Child("llmgw.discovery.disk", "no_such_probe")

    found = child.ask({}, 20)

    assert found.value is None
    assert "no_such_probe" in found.reason
