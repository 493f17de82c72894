"""Which processes are taken over, and which are never touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync

from llmgw.errors import EngineError
from llmgw.supervisor import adopt
from llmgw.supervisor.backend import Backend, Engine, Place
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from llmgw.supervisor.process import Processes
from llmgw.supervisor.systemd import TO_COME
from tests.fakes.sleepers import sleepers
from tests.supervisor.conftest import fact, gone, is_alive, living, node, order

Change = dict[str, Any]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no agent ever started."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process
        process.kill()


async def written(state_dir: Path, pid: int, **changes: Any) -> None:
    """A ledger that says that this process is fake-0."""
    await run_sync(lambda: _write(state_dir, pid, **changes))


def _write(state_dir: Path, pid: int, **changes: Any) -> None:
    ledger = Ledger(state_dir)
    ledger.open()
    identity = Identity.of(pid)
    assert identity
    entry = Entry(
        machine=ledger.machine,
        id="fake-0",
        generation=1,
        digest="d1",
        identity=identity,
        launch=Launch(argv=("sleep", "60")),
    )
    own = {k: v for k, v in changes.items() if k not in ("started", "boot")}
    rest = {k: v for k, v in changes.items() if k in ("started", "boot")}
    entry = msgspec.structs.replace(
        entry, identity=msgspec.structs.replace(identity, **rest), **own
    )
    ledger.write(entry)


@pytest.mark.parametrize("change", [{"started": 1}, {"boot": "another"}])
async def test_a_number_that_another_process_has_got_is_never_signalled(
    state_dir: Path, stranger: subprocess.Popen[bytes], change: Change
) -> None:
    """T48: the same pid is no proof."""
    await written(state_dir, stranger.pid, **change)

    async with node(state_dir) as here:
        here.supervisor.unwant("fake-0")

        assert here.supervisor.statuses() == ()
        assert await is_alive(stranger.pid)
        assert not list((state_dir / "ledger").iterdir())


async def test_a_zombie_is_not_adopted(state_dir: Path) -> None:
    """kill(pid, 0) says that it is there."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        await written(state_dir, process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        async with node(state_dir) as here:
            assert here.supervisor.statuses() == ()
    finally:
        process.kill()
        process.wait()


async def test_a_stop_that_was_begun_is_finished_and_not_taken_back(
    state_dir: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """A stopped engine is never recovered."""
    await written(state_dir, stranger.pid, stopping=True)

    async with node(state_dir) as here:
        stopped = await here.state("stopped")

        assert stopped.exit is not None
        assert stopped.exit.signal == signal.SIGTERM


LOST = pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"version": 1, "machine": "x", "id": "fake-0", "gen',
        b'{"version": 99, "machine": "x"}',
        b'{"version": 1, "machine": "another"}',
        b"\xff\xfe",
        b'{"version": 1}',
    ],
    ids=["empty", "truncated", "newer", "foreign", "binary", "fields"],
)


@LOST
async def test_an_engine_whose_line_is_lost_is_kept_by_the_lines_copy(
    state_dir: Path, content: bytes
) -> None:
    """It was stopped as soon as a leader said that it is wanted: nothing told that it
    was that very one.
    """
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
    line = state_dir / "ledger" / "fake-0.json"
    said = line.read_bytes()
    line.write_bytes(content)
    async with node(state_dir) as here:
        here.supervisor.want(order())
        after = await here.until(lambda s: s.state == "ready" and s.adopted)
        again = line.read_bytes()
        problems = here.supervisor.problems()
        await here.supervisor.stop_all()

        assert (after.pid, after.restarts) == (before.pid, 0)
        assert again == said
        assert [p.code for p in problems] == ["ledger_unreadable"]
        assert [p.name for p in (state_dir / "ledger").iterdir()] == [
            "fake-0.unreadable"
        ]


async def test_an_engine_without_a_copy_of_its_line_is_given_one(
    state_dir: Path,
) -> None:
    """An earlier version started it."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
    copy = state_dir / "ledger" / ".fake-0.json.copy"
    said = copy.read_bytes()
    copy.unlink()
    async with node(state_dir) as here:
        again = copy.read_bytes()
        await here.supervisor.stop_all()

        assert again == said


@pytest.mark.parametrize("part", ["pid", "started", "boot"])
async def test_an_engine_of_which_one_part_of_the_proof_is_damaged_is_kept(
    state_dir: Path, part: str
) -> None:
    """The line could be read, its process was not there, and so the engine was taken
    for what a dead one had left, and killed at the start of the agent.
    """
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--child", "setsid"))
        before = await here.state("ready")
    damaged = {"pid": 4_000_000, "started": 7, "boot": "another"}
    line = state_dir / "ledger" / "fake-0.json"
    entry = msgspec.json.decode(line.read_bytes())
    said = dict(entry["identity"])
    entry["identity"][part] = damaged[part]
    line.write_bytes(msgspec.json.encode(entry))
    (state_dir / "ledger" / ".fake-0.json.copy").unlink()
    async with node(state_dir) as here:
        here.supervisor.want(order())
        after = await here.until(lambda s: s.state == "ready" and s.adopted)
        entry = msgspec.json.decode(line.read_bytes())
        await here.supervisor.stop_all()

        assert (after.pid, after.restarts) == (before.pid, 0)
        assert entry["identity"] == said


async def test_a_process_that_was_not_started_as_an_engine_is_never_adopted(
    state_dir: Path,
) -> None:
    """With the first process of the machine all others would have been signalled: its
    number, its start time and the boot are no secret.
    """
    with subprocess.Popen(["sleep", "60"]) as child:
        for pid in (1, child.pid):
            await written(state_dir, pid)
            ledger = Ledger(state_dir)
            await run_sync(ledger.open)

            found = await adopt.survey(ledger, {"process": Processes(ledger, None)})

            assert (found.alive, found.strays) == ([], [])
            assert [entry.identity.pid for entry in found.gone] == [pid]
        assert child.poll() is None
        child.kill()


async def test_a_line_copied_for_another_replica_does_not_end_its_engine(
    state_dir: Path,
) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0"))
        first = await here.state("ready")
    line = state_dir / "ledger" / "fake-0.json"
    other = line.read_bytes().replace(b'"id":"fake-0"', b'"id":"fake-1"')
    line.with_name("fake-1.json").write_bytes(other)
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0"))
        here.supervisor.unwant("fake-1")
        kept = await here.until(lambda s: s.state == "ready" and s.adopted)

        assert [s.id for s in here.supervisor.statuses()] == ["fake-0"]
        assert kept.pid == first.pid
        await here.supervisor.stop_all()


class Deaf:
    """systemd, as it seems while it begins anew: it answers nothing."""

    name = "systemd"
    mode = "systemd, a unit each"

    async def start(self, id: str, launch: Launch, place: Place, record: Any) -> Engine:
        raise AssertionError("nothing is started here")

    async def adopt(self, entry: Entry) -> None:
        return None

    async def clear(self, id: str) -> None:
        raise AssertionError("nothing is ended here")


async def test_an_engine_that_its_backend_does_not_find_is_adopted_as_it_runs(
    state_dir: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """One `systemctl show` without an answer, and its engine was ended."""
    await written(state_dir, stranger.pid, backend="systemd")
    ledger = Ledger(state_dir)
    await run_sync(ledger.open)
    backends: dict[str, Backend] = {
        "systemd": Deaf(),
        "process": Processes(ledger, None),
    }

    found = await adopt.survey(ledger, backends)

    ((entry, engine),) = found.alive
    engine.close()
    assert (entry.id, engine.identity.pid) == ("fake-0", stranger.pid)
    assert (found.gone, found.strays) == ([], [])


async def test_a_unit_whose_number_is_not_known_yet_is_found_by_its_tag(
    state_dir: Path,
) -> None:
    """The agent ended between the start of a unit and its answer; the next one could
    not ask systemd, and killed the engine as left by a dead one.
    """
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--child", "setsid"))
        before = await here.state("ready")
    nobody = {"pid": 0, "started": 0, "invocation": TO_COME}
    for name in ("fake-0.json", ".fake-0.json.copy"):
        line = state_dir / "ledger" / name
        entry = msgspec.json.decode(line.read_bytes())
        entry["backend"] = "systemd"
        entry["identity"] |= nobody
        line.write_bytes(msgspec.json.encode(entry))
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--child", "setsid"))
        after = await here.until(lambda s: s.state == "ready" and s.adopted)
        await here.supervisor.stop_all()

        assert (after.pid, after.restarts) == (before.pid, 0)
        assert not await living(state_dir)


@LOST
async def test_an_engine_whose_line_is_lost_is_found_by_its_tag(
    state_dir: Path, content: bytes
) -> None:
    """It is neither lost nor started twice, and the damage is said."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
    (state_dir / "ledger" / "fake-0.json").write_bytes(content)
    (state_dir / "ledger" / ".fake-0.json.copy").unlink()
    async with node(state_dir) as here:
        found = await here.state("unhealthy")
        with pytest.raises(EngineError, match="still"):
            here.supervisor.want(order())
        problems = here.supervisor.problems()
        here.supervisor.unwant("fake-0")
        await here.state("stopped")

        assert found.pid == before.pid
        assert found.spec_digest == ""
        assert [p.code for p in problems] == ["ledger_unreadable"]
        assert not await living(state_dir)


async def test_an_engine_whose_backend_is_no_longer_there_is_adopted_as_it_runs(
    state_dir: Path,
) -> None:
    """It was ended as a leftover once supervisor.backend was no longer systemd."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
    line = state_dir / "ledger" / "fake-0.json"
    line.write_bytes(line.read_bytes().replace(b'"process"', b'"systemd"'))
    async with node(state_dir) as here:
        here.supervisor.want(order())
        after = await here.until(lambda s: s.state == "ready" and s.adopted)
        await here.supervisor.stop_all()

        assert after.pid == before.pid
        assert not await living(state_dir)


async def test_what_a_dead_engine_left_is_ended_by_the_next_agent(
    state_dir: Path,
) -> None:
    """T52 over a restart: nobody was there to see the engine die."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--child", "double"))
        first = await here.state("ready")
    assert first.pid
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    left = await living(state_dir)
    async with node(state_dir) as here:
        assert here.supervisor.statuses() == ()
        assert left
        assert not await living(state_dir)


async def test_another_agents_engines_are_left_alone(
    state_dir: Path, tmp_path: Path
) -> None:
    """Two agents on one machine, with the same replica."""
    other = tmp_path / "other"
    async with node(other) as theirs:
        theirs.supervisor.want(order())
        pid = (await theirs.state("ready")).pid
        async with node(state_dir) as here:
            here.supervisor.want(order())
            await here.state("ready")
            here.supervisor.unwant("fake-0")
            await here.state("stopped")

            assert theirs.status().pid == pid
        await theirs.supervisor.stop_all()


async def test_an_adopted_engine_that_stays_silent_is_unhealthy_in_time(
    state_dir: Path,
) -> None:
    """`adopt_ready_timeout` bounds the wait; what follows is the engine's policy."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        pid = (await here.state("ready")).pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    async with node(
        state_dir, adopt_ready_timeout=0.3, health_timeout=0.1, stop_grace=0.1
    ) as here:
        waiting = await here.state("starting")
        silent = await here.state("unhealthy")
        here.supervisor.unwant("fake-0")
        await here.state("stopped")

        assert waiting.adopted
        assert silent.reason is not None
        assert "adopted" in silent.reason


async def test_an_adopted_engine_that_was_loading_may_go_on_loading(
    state_dir: Path,
) -> None:
    """The limit for adoption is a minute; a large model loads for twenty."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--ready-after", "1"))
        pid = (await here.until(lambda s: s.state == "starting" and bool(s.pid))).pid
    async with node(state_dir, adopt_ready_timeout=0.1) as here:
        here.supervisor.want(order("fake-0", "--ready-after", "1"))
        ready = await here.state("ready")

        assert ready.pid == pid
        assert ready.restarts == 0


async def test_an_adopted_engine_that_dies_is_started_again_once_it_has_an_order(
    state_dir: Path,
) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
    async with node(state_dir) as here:
        first = await here.state("ready")
        here.supervisor.want(order())
        assert first.pid
        os.kill(first.pid, signal.SIGKILL)
        second = await here.until(lambda s: s.state == "ready" and s.pid != first.pid)

        assert second.adopted is False


async def test_an_adopted_engine_without_an_order_is_not_started_again(
    state_dir: Path,
) -> None:
    """Nobody has said yet that it is still wanted."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
    async with node(state_dir) as here:
        first = await here.state("ready")
        assert first.pid
        os.kill(first.pid, signal.SIGKILL)
        stopped = await here.state("stopped")

        assert stopped.exit is not None
        assert not await living(state_dir)


async def test_fifty_engines_are_all_adopted(state_dir: Path) -> None:
    """How long it takes is for `make bench-adoption`."""
    held = sleepers(state_dir, 50)
    pids = await run_sync(held.__enter__)
    try:
        async with node(state_dir) as here:
            statuses = here.supervisor.statuses()

            assert sorted(status.pid or 0 for status in statuses) == sorted(pids)
            assert {status.adopted for status in statuses} == {True}
    finally:
        held.__exit__(None, None, None)


def test_a_line_is_whole_or_is_the_one_before(tmp_path: Path) -> None:
    """A writer killed at any moment leaves no half."""
    program = (
        "import sys; from pathlib import Path\n"
        "from llmgw.supervisor.ledger import write_whole\n"
        "path = Path(sys.argv[1])\n"
        "write_whole(path, b'a' * 100000)\n"
        "print('written', flush=True)\n"
        "for _ in range(10**6):\n"
        "    write_whole(path, b'b' * 100000)\n"
        "    write_whole(path, b'a' * 100000)\n"
    )
    path = tmp_path / "line"
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout
            writer.stdout.readline()
            writer.kill()

        content = path.read_bytes()
        assert content in (b"a" * 100000, b"b" * 100000)


async def test_a_killed_agent_loses_nothing(state_dir: Path) -> None:
    """SIGKILL while engines start: each is then known to the ledger, or not there."""
    for delay in (0.0, 0.004, 0.008, 0.012, 0.02, 0.05):
        agent = await run_sync(_agent, state_dir)
        await anyio.sleep(delay)  # the moment of death is what is varied
        agent.kill()
        await run_sync(agent.wait)
        async with node(state_dir) as here:
            known = {s.pid for s in here.supervisor.statuses()}
            found = [s.pid for n in range(4) for s in await living(state_dir, f"k-{n}")]

            assert set(found) <= known
            await here.supervisor.stop_all()
            for pid in found:
                await gone(pid)


def _agent(state_dir: Path) -> subprocess.Popen[bytes]:
    """One that says when it has been asked for four engines."""
    program = (
        "import sys, anyio; from pathlib import Path\n"
        "from tests.supervisor.conftest import node, order\n"
        "async def main():\n"
        "    async with node(Path(sys.argv[1])) as here:\n"
        "        for number in range(4):\n"
        "            here.supervisor.want(order(f'k-{number}'))\n"
        "        print('asked', flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", program, str(state_dir)], stdout=subprocess.PIPE
    )
    assert agent.stdout
    assert agent.stdout.readline() == b"asked\n"
    agent.stdout.close()
    return agent


async def test_a_stop_is_in_the_ledger_before_the_engine_is_asked(
    state_dir: Path,
) -> None:
    """An agent killed half-way through it leaves word for the next."""
    path = state_dir / "ledger" / "fake-0.json"
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--term-takes", "1"))
        await here.state("ready")
        here.supervisor.unwant("fake-0")
        await fact(lambda: b'"stopping":true' in path.read_bytes())
        assert here.status().state == "stopping"
        await here.state("stopped")
