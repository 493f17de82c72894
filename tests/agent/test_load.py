"""How busy the node is, between two surveys; asked of the real pynvml."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import pytest

from llmgw.agent.load import Sampler
from llmgw.discovery.child import Hung
from llmgw.discovery.gpu_load import is_busy
from llmgw.discovery.standing import Standing
from llmgw.supervisor import procfs
from llmgw.wire import GpuLoad
from tests.discovery import trees
from tests.fakes import nvml
from tests.fakes.nvml import GIB, bus

T = TypeVar("T")

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


def standing(libraries: Path, folder: Path, lines: list[str]) -> Standing:
    said(folder, lines)
    trees.gpu(folder, bus(0))
    environ = nvml.environ(libraries, folder / "machine")
    return Standing("llmgw.discovery.gpu_load", "sample", environ)


def said(folder: Path, lines: list[str]) -> None:
    (folder / "machine").write_text("\n".join(lines) + "\n")


def children() -> set[int]:
    return {one.pid for one in procfs.everyone() if one.parent == os.getpid()}


@needs_gcc
def test_the_driver_is_open_only_while_a_card_is_used(
    libraries: Path, tmp_path: Path
) -> None:
    """An idle node's cards can be reset, and its driver be replaced."""
    held = tmp_path / "open"
    lines = [f"held {held}"]
    child = standing(libraries, tmp_path, [*lines, *nvml.card(0, "A", 80 * GIB)])
    ask = {"root": str(tmp_path)}
    try:
        (idle,) = child.ask(ask, 20)
        assert idle["memory_used"] == GIB
        assert not is_busy([idle])
        assert not held.exists()

        said(tmp_path, [*lines, *nvml.card(0, "A", 80 * GIB, utilization="62 1")])
        (busy,) = child.ask(ask, 20)
        assert busy == {
            "uuid": "GPU-00000000",
            "utilization": 0.62,
            "memory_used": GIB,
        }
        assert held.exists()
    finally:
        child.close()


@needs_gcc
def test_slices_have_memory_and_no_utilization(libraries: Path, tmp_path: Path) -> None:
    """T82."""
    child = standing(libraries, tmp_path, nvml.a100_mig())
    try:
        found = child.ask({"root": str(tmp_path)}, 20)
    finally:
        child.close()

    assert [one["uuid"] for one in found] == [
        *(f"MIG-{number}" for number in range(7)),
        "GPU-00000001",
    ]
    assert {one["memory_used"] for one in found[:7]} == {GIB}
    assert {one["utilization"] for one in found} == {None}


@needs_gcc
def test_one_that_hangs_is_ended_and_begun_anew(
    libraries: Path, tmp_path: Path
) -> None:
    """T84."""
    hang = "hang nvmlDeviceGetMemoryInfo_v2"
    child = standing(libraries, tmp_path, [hang, *nvml.card(0, "A", 80 * GIB)])
    ask = {"root": str(tmp_path)}
    try:
        before = children()
        with pytest.raises(Hung):
            child.ask(ask, 1.0)
        assert children() == before

        said(tmp_path, nvml.card(0, "A", 80 * GIB))
        assert len(child.ask(ask, 20)) == 1
    finally:
        child.close()


def test_one_that_cannot_be_ended_is_not_joined() -> None:
    """T84: asleep in a driver, it outlives SIGKILL; one such process is enough."""
    spared: list[int] = []

    def kill(pid: int, number: int) -> None:
        if spared:
            os.killpg(pid, number)
        else:
            stop(pid)
        spared.append(pid)

    child = Standing("subprocess", "getoutput", kill=kill)
    ask = {"cmd": "exec sleep 60"}
    before = children()
    try:
        with pytest.raises(Hung) as first:
            child.ask(ask, 1.0)
        with pytest.raises(Hung) as second:
            child.ask(ask, 1.0)
        assert second.value.since == first.value.since
        assert len(children() - before) == len(spared) == 1
    finally:
        os.killpg(spared[0], signal.SIGKILL)

    assert when_free(child, {"cmd": "echo well"}) == "well"
    child.close()


def stop(pid: int) -> None:
    """Let it do as little as one that sleeps in a driver."""
    os.killpg(pid, signal.SIGSTOP)
    wait_for(lambda: b") T " in Path(f"/proc/{pid}/stat").read_bytes())


def when_free(child: Standing, ask: dict[str, str]) -> object:
    until = time.monotonic() + 10
    while True:
        try:
            return child.ask(ask, 10.0)
        except Hung:
            assert time.monotonic() < until
            threading.Event().wait(0.01)


def test_its_answer_is_heard_above_descriptor_1023() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 1200:
        pytest.skip("needs 1,200 descriptors: ulimit -Hn 4096")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, most))
    held = [os.open("/dev/null", os.O_RDONLY)]
    child = Standing("posixpath", "basename")
    try:
        while held[-1] < 1024:
            held.append(os.dup(held[0]))
        assert child.ask({"p": "a/b"}, 20) == "b"
    finally:
        child.close()
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_that_was_ended_between_two_questions_is_begun_anew() -> None:
    """The OOM killer takes it, say: no question may fail for that."""
    child = Standing("posixpath", "basename")
    before = children()
    try:
        assert child.ask({"p": "a/b"}, 20) == "b"
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: b") Z " in Path(f"/proc/{pid}/stat").read_bytes())
        assert child.ask({"p": "a/b"}, 20) is None
        assert child.ask({"p": "a/b"}, 20) == "b"
    finally:
        child.close()


def test_an_answer_that_is_none_is_as_good_as_its_end() -> None:
    child = Standing("builtins", "print")
    try:
        assert child.ask({"file": None, "end": "no JSON\n"}, 20) is None
    finally:
        child.close()


def test_one_that_dies_of_a_question_is_begun_anew() -> None:
    child = Standing("os", "_exit")
    try:
        assert child.ask({"status": 3}, 20) is None
        assert child.ask({"status": 3}, 20) is None
    finally:
        child.close()


SURVEYED: list[dict[str, Any]] = [
    {
        "uuid": "a",
        "memory": 80 * GIB,
        "now": {"memory_free": 60 * GIB, "utilization": 0.1},
    },
    {"uuid": "b", "memory": 80 * GIB},
]


async def test_the_newest_sample_counts_and_a_silent_driver_is_unknown(
    tmp_path: Path,
) -> None:
    """Not as old as the last survey, which may be a minute; and never 0 for unknown."""
    answers: list[Any] = []

    def ask(_: dict[str, Any], __: float) -> list[dict[str, Any]] | None:
        if not answers:
            raise Hung(0.0)
        return answers.pop()

    sampler = Sampler(tmp_path, lambda: SURVEYED, ask)
    assert sampler.load().gpus == (
        GpuLoad(uuid="a", utilization=0.1, memory_used=20 * GIB),
        GpuLoad(uuid="b"),
    )

    answers.append([{"uuid": "a", "utilization": 0.9, "memory_used": 70 * GIB}])
    await sampler.sample_gpus()
    assert sampler.load().gpus[0] == GpuLoad(
        uuid="a", utilization=0.9, memory_used=70 * GIB
    )

    await sampler.sample_gpus()
    assert sampler.load().gpus == (GpuLoad(uuid="a"), GpuLoad(uuid="b"))


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "no process"), RuntimeError("no thread")]
)
async def test_load_that_cannot_be_asked_for_is_unknown(
    tmp_path: Path, error: Exception
) -> None:
    """At its limit of processes a node keeps its engines."""

    def ask(_: dict[str, Any], __: float) -> list[dict[str, Any]] | None:
        raise error

    sampler = Sampler(tmp_path, lambda: SURVEYED, ask)
    await sampler.sample_gpus()

    assert [one.uuid for one in sampler.load().gpus] == ["a", "b"]


async def test_no_driver_is_asked_on_a_node_without_cards(tmp_path: Path) -> None:
    asked = anyio.Event()

    def ask(_: dict[str, Any], __: float) -> list[dict[str, Any]] | None:
        anyio.from_thread.run_sync(asked.set)
        return []

    cards: list[dict[str, Any]] = []
    sampler = Sampler(tmp_path, lambda: cards, ask)
    async with anyio.create_task_group() as group:
        await group.start(sampler.run)
        await anyio.wait_all_tasks_blocked()
        assert not asked.is_set()
        group.cancel_scope.cancel()

    cards = SURVEYED
    async with anyio.create_task_group() as group:
        await group.start(sampler.run)
        with anyio.fail_after(5):
            await asked.wait()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("kind", ["child.Child", "standing.Standing"])
def test_what_hangs_leaves_with_its_owner(kind: str) -> None:
    """T84: an agent that is killed while a driver hangs leaves nothing behind: each
    restart would leave one more."""
    module, name = kind.split(".")
    program = (
        f"from llmgw.discovery.{module} import {name}\n"
        f"asked = {name}('subprocess', 'run')\n"
        "print('asks', flush=True)\n"
        "asked.ask({'args': ['sleep', '61.5']}, 60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner:
        assert owner.stdout.readline() == b"asks\n"
        below = wait_for(lambda: sessions_below(owner.pid))
        wait_for(lambda: any(b"61.5" in words for words in words_of(below)))
        owner.kill()
    wait_for(lambda: not words_of(below))


def sessions_below(pid: int) -> set[int]:
    # One that was forked just now is in the session of its parent for a moment.
    found = [one for one in procfs.everyone() if one.parent == pid]
    return {one.session for one in found if one.session == one.pid}


def words_of(sessions: set[int]) -> list[bytes]:
    return [
        Path(f"/proc/{one.pid}/cmdline").read_bytes()
        for one in procfs.everyone()
        if one.session in sessions and one.is_alive
    ]


def wait_for(fact: Callable[[], T]) -> T:
    until = time.monotonic() + 20
    while not (found := fact()):
        assert time.monotonic() < until
        threading.Event().wait(0.01)
    return found
