"""One cgroup per engine, in a real hierarchy."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.aio import Latest
from llmgw.errors import EngineError
from llmgw.supervisor import adopt, files, procfs
from llmgw.supervisor.cgroup import Cgroup, Tree, divide
from llmgw.supervisor.health import client
from llmgw.supervisor.keeper import Keeper, Tools
from llmgw.supervisor.launch import Health, Launch, Limits
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from llmgw.supervisor.ports import Ports
from llmgw.supervisor.process import Process, Processes
from tests.fakes.ports import free_block
from tests.supervisor.conftest import (
    FAKE,
    fact,
    is_alive,
    living,
    order,
    settings,
)


def hierarchy() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2" and os.access(fields[1], os.W_OK):
            return Path(fields[1])
    return None


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A folder such as systemd gives to a unit that asks for one."""
    mount = hierarchy()
    if mount is None:
        pytest.skip("run as root with cgroup2 mounted, or in a delegated unit")
    path = mount / f"llmgw-{secrets.token_hex(4)}"
    path.mkdir()
    yield path
    left = Cgroup(path)
    for pid in left.pids():
        os.kill(pid, signal.SIGKILL)
    for _ in range(200):
        left.remove()
        if not path.exists():
            return
        signal.sigtimedwait([], 0.01)


@pytest.fixture
def ledger(state_dir: Path) -> Ledger:
    ledger = Ledger(state_dir)
    ledger.open()
    return ledger


async def started(
    ledger: Ledger,
    tree: Tree,
    *options: str,
    limits: Limits | None = None,
    argv: tuple[str, ...] | None = None,
) -> tuple[Process, Entry]:
    """A fake engine of this tree, and its line."""
    backend = Processes(ledger, tree)
    port = free_block(1)
    launch = Launch(
        argv=argv or (*FAKE, "--port", str(port), *options), limits=limits or Limits()
    )
    place = await run_sync(
        files.lay_out, ledger.folder.parent, "fake-0", launch, ledger.tags("fake-0")
    )
    written: list[Entry] = []

    def record(identity: Identity, cgroup: str | None) -> None:
        written.append(
            Entry(
                machine=ledger.machine,
                id="fake-0",
                generation=1,
                digest="d1",
                identity=identity,
                launch=launch,
                cgroup=cgroup,
            )
        )

    return await backend.start("fake-0", launch, place, record), written[0]


async def test_an_engine_and_all_it_starts_are_in_its_cgroup_and_end_with_it(
    ledger: Ledger, delegated: Path
) -> None:
    """T52, T54: whatever they call themselves and whoever their parent is."""
    tree = Tree(delegated, frozenset())
    process, entry = await started(ledger, tree, "--child", "double", "--ignore-term")
    group = Cgroup(delegated / "engine-fake-0")
    await fact(lambda: len(group.pids()) == 2)
    pids = await run_sync(group.pids)
    exit = await process.stop(signal.SIGTERM, 0.2)

    assert process.identity.pid in pids
    assert entry.cgroup == str(group.path)
    assert exit.signal == signal.SIGKILL
    for pid in pids:
        assert not await is_alive(pid)
    assert not group.path.exists()


async def test_an_adopted_engine_is_still_held_by_its_cgroup(
    ledger: Ledger, delegated: Path
) -> None:
    tree = Tree(delegated, frozenset())
    first, entry = await started(ledger, tree, "--child", "double")
    group = Cgroup(delegated / "engine-fake-0")
    await fact(lambda: len(group.pids()) == 2)
    pids = await run_sync(group.pids)
    first.close()
    adopted = await Processes(ledger, tree).adopt(entry)
    assert adopted
    await adopted.stop(signal.SIGTERM, 0.2)

    for pid in pids:
        assert not await is_alive(pid)


async def test_a_cgroup_that_an_adopted_engine_is_not_in_is_not_swept(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A folder of that name and a list of numbers were enough: they were signalled."""
    backend = Processes(ledger, None)
    argv = (*FAKE, "--port", str(free_block(1)))
    launch = Launch(argv=argv)
    place = await run_sync(
        files.lay_out, ledger.folder.parent, "fake-0", launch, ledger.tags("fake-0")
    )
    first = await backend.start("fake-0", launch, place, lambda _, __: None)
    folder = tmp_path / "engine-fake-0"
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        await run_sync(folder.mkdir)
        await run_sync((folder / "cgroup.procs").write_text, f"{stranger.pid}\n")
        entry = Entry(
            machine=ledger.machine,
            id="fake-0",
            generation=1,
            digest="d1",
            identity=first.identity,
            launch=launch,
            cgroup=str(folder),
        )
        first.close()
        adopted = await backend.adopt(entry)
        assert adopted
        await adopted.stop(signal.SIGTERM, 1.0)

        assert stranger.poll() is None
        assert not await is_alive(entry.identity.pid)
        stranger.kill()


TITLED = """
import ctypes, os, signal
if os.fork():
    signal.pause()
os.setsid()
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = map(int, fields[47:49])
ctypes.memset(begin, 0, end - begin)
open(os.environ["HOME"] + "/titled", "w").close()
signal.pause()
"""


async def test_what_a_dead_engine_left_without_its_tag_ends_by_its_cgroup(
    ledger: Ledger, delegated: Path
) -> None:
    """A worker with its title over its environment went on with the GPU, and the next
    engine was started beside it.
    """
    tree = Tree(delegated, frozenset())
    first, entry = await started(ledger, tree, argv=(sys.executable, "-c", TITLED))
    await fact((ledger.folder.parent / "run/fake-0/titled").exists)
    group = tree.at("fake-0")
    os.kill(entry.identity.pid, signal.SIGKILL)
    await first.exited()
    first.close()
    os.waitpid(entry.identity.pid, 0)
    (worker,) = await run_sync(group.pids)
    assert not await living(ledger.folder.parent)
    with pytest.raises(EngineError, match="holds processes already"):
        await run_sync(tree.make, "fake-0", Limits())
    assert await is_alive(worker)
    await run_sync(ledger.write, entry)

    await adopt.survey(ledger, {"process": Processes(ledger, tree)})

    assert not await is_alive(worker)


async def marked(state_dir: Path) -> None:
    """Through its gate: before, it bears no tag."""
    with anyio.fail_after(5):
        while not await living(state_dir):
            await anyio.sleep(0.01)


async def test_an_engine_that_was_moved_to_another_cgroup_ends_all_the_same(
    ledger: Ledger, delegated: Path
) -> None:
    """Its own was empty, so it was taken for gone: it went on, and was forgotten."""
    tree = Tree(delegated, frozenset())
    process, entry = await started(
        ledger, tree, "--child", "double", "--ignore-term", "--term-takes", "60"
    )
    group = tree.at("fake-0")
    await fact(lambda: len(group.pids()) == 2)
    pids = await run_sync(group.pids)
    other = Cgroup(delegated / "a-persons")
    await run_sync(other.path.mkdir)
    await run_sync(other.join, entry.identity.pid)
    with anyio.fail_after(10):
        exit = await process.stop(signal.SIGTERM, 0.2)

    assert exit.signal == signal.SIGKILL
    assert not [pid for pid in pids if await is_alive(pid)]


async def test_what_another_agent_started_in_a_cgroup_of_that_name_is_not_swept(
    ledger: Ledger, delegated: Path, tmp_path: Path
) -> None:
    """Two agents that a user began from one shell divide one part of the hierarchy. The
    line of an engine that had died ended the other agent's of the same name.
    """
    other = Ledger(tmp_path / "other")
    await run_sync(other.open)
    tree = Tree(delegated, frozenset())
    theirs, entry = await started(other, tree)
    await marked(other.folder.parent)
    dead = Identity(pid=4_000_000, started=7, boot=entry.identity.boot)
    ours = msgspec.structs.replace(entry, identity=dead)
    await run_sync(ledger.write, ours)

    await adopt.survey(ledger, {"process": Processes(ledger, tree)})

    assert await is_alive(entry.identity.pid)
    await theirs.stop(signal.SIGKILL, 0)


async def test_a_replica_moved_into_anothers_cgroup_is_not_swept_with_it(
    ledger: Ledger, delegated: Path
) -> None:
    tree = Tree(delegated, frozenset())
    moved, entry = await started(ledger, tree)
    await marked(ledger.folder.parent)
    await run_sync(tree.make, "fake-1", Limits())
    await run_sync(tree.at("fake-1").join, entry.identity.pid)

    await Processes(ledger, tree).clear("fake-1")

    assert await is_alive(entry.identity.pid)
    moved.close()
    found = await adopt.survey(ledger, {"process": Processes(ledger, tree)})
    ((stray, engine),) = found.strays
    assert (stray.id, stray.cgroup) == ("fake-0", None)
    await engine.stop(signal.SIGKILL, 0)


async def test_what_a_lost_lines_engine_left_in_its_cgroup_ends(
    ledger: Ledger, delegated: Path
) -> None:
    """Only the copy told of it, and was not asked: the replica was never started again,
    as its cgroup held a process.
    """
    tree = Tree(delegated, frozenset())
    await run_sync(tree.make, "fake-0", Limits())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as worker:
        await run_sync(tree.at("fake-0").join, worker.pid)
        boot = await run_sync(procfs.boot_id)
        entry = Entry(
            machine=ledger.machine,
            id="fake-0",
            generation=1,
            digest="d1",
            identity=Identity(pid=4_000_000, started=7, boot=boot),
            launch=Launch(argv=("sleep", "60")),
            cgroup=str(tree.at("fake-0").path),
        )
        await run_sync(ledger.write, entry)
        await run_sync((ledger.folder / "fake-0.json").write_bytes, b"")

        await adopt.survey(ledger, {"process": Processes(ledger, tree)})

        assert not await is_alive(worker.pid)
        await run_sync(tree.make, "fake-0", Limits())


async def test_what_cannot_be_killed_holds_up_no_start_of_the_agent(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sat in a driver, and no engine of the node was adopted or stopped any more."""
    monkeypatch.setattr("llmgw.supervisor.process.UNKILLABLE_AFTER", 0.1)

    def nothing(_stats: object, _sign: object) -> None:
        pass

    monkeypatch.setattr("llmgw.supervisor.process.send", nothing)
    folder = tmp_path / "engine-fake-0"
    await run_sync(folder.mkdir)
    with subprocess.Popen(["sleep", "60"]) as stuck:
        await run_sync((folder / "cgroup.procs").write_text, f"{stuck.pid}\n")

        with anyio.fail_after(5):
            await Processes(ledger, Tree(tmp_path, frozenset())).clear("fake-0")

        assert stuck.poll() is None
        stuck.kill()


def test_what_an_earlier_engine_was_held_to_is_not_the_next_ones(
    delegated: Path,
) -> None:
    """Left as its engine ended without an agent: frozen, the next never began."""
    tree = Tree(delegated, frozenset())
    left = tree.make("fake-0", Limits())
    (left.path / "cgroup.freeze").write_text("1")
    (left.path / "cgroup.max.descendants").write_text("3")

    made = tree.make("fake-0", Limits())

    assert (made.path / "cgroup.freeze").read_text() == "0\n"
    assert (made.path / "cgroup.max.descendants").read_text() == "max\n"


async def test_an_engine_joins_before_its_first_instruction(
    ledger: Ledger, delegated: Path
) -> None:
    """What it allocates at once is already counted."""
    tree = Tree(delegated, frozenset())
    backend = Processes(ledger, tree)
    launch = Launch(argv=("/bin/cat", "/proc/self/cgroup"))
    place = await run_sync(
        files.lay_out, ledger.folder.parent, "fake-0", launch, ledger.tags("fake-0")
    )
    process = await backend.start("fake-0", launch, place, lambda _, __: None)
    await process.exited()
    await process.stop(signal.SIGKILL, 0)

    assert "/engine-fake-0\n" in place.log.read_text()


def test_limits_are_written_where_the_kernel_reads_them(tmp_path: Path) -> None:
    """Over a folder: this machine's hierarchy may have no controllers to give."""
    tree = Tree(tmp_path, frozenset(("memory", "cpu", "cpuset")))

    made = tree.make("x", Limits(memory=8 << 30, cpus=2.5, cpuset=(0, 1, 4)))

    assert {f.name: f.read_text() for f in made.path.iterdir()} == {
        "memory.max": str(8 << 30),
        "memory.oom.group": "1",
        "cpu.max": "250000 100000",
        "cpuset.cpus": "0,1,4",
    }


def test_without_controllers_nothing_is_limited_and_it_is_said(tmp_path: Path) -> None:
    tree = Tree(tmp_path, frozenset())

    made = tree.make("x", Limits(memory=1 << 30))

    assert list(made.path.iterdir()) == []
    assert "nothing is limited" in tree.describe()


def test_a_limit_that_cannot_be_set_is_an_error_of_that_engine(tmp_path: Path) -> None:
    (tmp_path / "engine-x" / "memory.max").mkdir(parents=True)
    (tmp_path / "engine-x" / "memory.max" / "file").touch()
    tree = Tree(tmp_path, frozenset(("memory",)))

    with pytest.raises(EngineError, match="cannot be made or limited"):
        tree.make("x", Limits(memory=1))


def test_killed_for_memory_is_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n")

    assert Cgroup(tmp_path).ooms() == 3
    assert Cgroup(tmp_path / "absent").ooms() is None


@pytest.mark.parametrize(
    ("text", "pressure"),
    [
        ("some avg10=0.00 avg60=0 avg300=0 total=0\nfull avg10=0.00 total=0\n", 0.0),
        ("some avg10=43.21 avg60=9.00 total=7\nfull avg10=12.34 total=3\n", 0.4),
        ("", None),
    ],
)
def test_how_long_an_engine_waits_for_memory_is_read(
    tmp_path: Path, text: str, pressure: float | None
) -> None:
    """In tenths, so that it is told only when it matters."""
    (tmp_path / "memory.pressure").write_text(text)

    assert Cgroup(tmp_path).pressure() == pressure
    assert Cgroup(tmp_path / "absent").pressure() is None


@pytest.mark.parametrize("health", [None, Health()])
async def test_pressure_and_oom_are_in_the_status_of_the_replica(
    ledger: Ledger, tmp_path: Path, health: Health | None
) -> None:
    """T63: over a folder that says what a kernel with a memory controller says."""
    path = tmp_path / "tree" / "engine-fake-0"
    path.mkdir(parents=True)
    (path / "memory.pressure").write_text("some avg10=43.21 avg60=9.00 total=7\n")
    (path / "memory.events").write_text("oom 1\noom_kill 1\n")
    told = Latest(0)
    async with client(1.0) as http, anyio.create_task_group() as group:
        tools = Tools(
            settings=settings(restart_base=30.0, restart_max=60.0),
            backend=Processes(ledger, Tree(tmp_path / "tree", frozenset())),
            ledger=ledger,
            ports=Ports(f"{free_block(5)}-65535", 0.0),
            client=http,
            state_dir=ledger.folder.parent,
            adopt_ready_timeout=1.0,
            changed=lambda: told.set(told.value + 1),
        )
        keeper = Keeper(
            tools, order(health=health, restart=wire.Restart(at_once=False))
        )
        group.start_soon(keeper.run)
        with anyio.fail_after(10):
            while keeper.status().memory_pressure is None:
                await told.newer_than(told.number)
        pressed = keeper.status()
        assert pressed.pid
        os.kill(pressed.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            while keeper.state != "backoff":
                await told.newer_than(told.number)
        down = keeper.status()
        keeper.stop()

        assert pressed.memory_pressure == 0.4
        assert down.memory_pressure is None
        assert (down.reason or "").startswith("out of memory: killed by SIGKILL")


def test_dividing_moves_the_agent_below_and_keeps_engines_apart(
    delegated: Path,
) -> None:
    """A cgroup with children may hold no process itself."""
    with subprocess.Popen(["sleep", "60"]) as agent:
        (delegated / "cgroup.procs").write_text(str(agent.pid))
        tree = divide(delegated)
        assert tree
        moved = procfs.cgroup(agent.pid)
        agent.kill()

    assert moved == delegated / "agent"
    assert (delegated / "cgroup.procs").read_text() == ""


def test_what_was_not_delegated_is_left_alone(delegated: Path) -> None:
    """Root may write everywhere; that makes nothing its own."""
    if os.geteuid() != 0:
        pytest.skip("run as root: only root may write where nothing was delegated")
    program = "from llmgw.supervisor import cgroup\nprint(cgroup.delegated() is None)\n"
    with subprocess.Popen(
        ["sh", "-c", 'read x; exec "$@"', "sh", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdin
        (delegated / "cgroup.procs").write_text(str(agent.pid))
        out, _ = agent.communicate(b"go\n")
        assert out == b"True\n"
    assert not (delegated / "agent").exists()


def test_what_systemd_delegated_is_divided(delegated: Path) -> None:
    os.setxattr(delegated, "trusted.delegate", b"1")
    program = (
        "from llmgw.supervisor import cgroup\nprint(cgroup.delegated().describe())\n"
    )
    with subprocess.Popen(
        ["sh", "-c", 'read x; exec "$@"', "sh", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdin
        (delegated / "cgroup.procs").write_text(str(agent.pid))
        out, _ = agent.communicate(b"go\n")

    assert out.startswith(b"no controllers") or b"memory" in out
    assert (delegated / "agent").exists()


async def test_an_engine_that_cannot_join_is_not_started(
    ledger: Ledger, tmp_path: Path
) -> None:
    """Outside its cgroup nothing would limit it, and a stop would not find all of it.

    A folder of a plain file system has no `cgroup.procs` that takes a number; here one
    stands in its way.
    """
    (tmp_path / "tree" / "engine-fake-0" / "cgroup.procs").mkdir(parents=True)
    (tmp_path / "tree" / "engine-fake-0" / "cgroup.procs" / "file").touch()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(EngineError, match="cannot be started"):
        await started(ledger, Tree(tmp_path / "tree", frozenset()))

    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert not await living(ledger.folder.parent)
