"""What the copy of a line may tell, once it is older than the line or all there is."""

import os
import signal
from pathlib import Path

import msgspec
from anyio.to_thread import run_sync

from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from tests.supervisor.conftest import living, node, order


def kept(state_dir: Path, **changes: object) -> tuple[Ledger, Entry]:
    """A ledger with a line, and its copy, for this very process."""
    ledger = Ledger(state_dir)
    ledger.open()
    identity = Identity.of(os.getpid())
    assert identity
    entry = Entry(
        machine=ledger.machine,
        id="fake-0",
        generation=1,
        digest="d1",
        identity=identity,
        launch=Launch(argv=("sleep", "60"), env={"API_KEY": "secret"}),
    )
    ledger.write(msgspec.structs.replace(entry, **changes))
    return ledger, entry


def test_a_copy_is_read_by_nobody_else(tmp_path: Path) -> None:
    """It has the environment of the engine, as the line, which only its owner reads."""
    ledger, _ = kept(tmp_path)

    modes = {path.name: path.stat().st_mode & 0o777 for path in ledger.folder.iterdir()}

    assert modes == {"fake-0.json": 0o600, ".fake-0.json.copy": 0o600}


def test_a_fifo_where_a_copy_is_written_holds_nobody_up(tmp_path: Path) -> None:
    """The keeper waited for a reader of it, with the engine at the gate."""
    ledger, entry = kept(tmp_path)
    os.mkfifo(ledger.folder / ".fake-0.json.copy.part")

    ledger.write(msgspec.structs.replace(entry, restarts=3))

    assert [copy.restarts for copy in ledger.copies(())] == [3]


async def test_a_copy_that_an_older_version_let_lie_is_made_anew(
    state_dir: Path,
) -> None:
    """It spoke of the engine before. Once the line was damaged, the one that ran was
    found by its tag alone, and stopped.
    """
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
    line = state_dir / "ledger" / "fake-0.json"
    copy = state_dir / "ledger" / ".fake-0.json.copy"
    said = copy.read_bytes()
    older = msgspec.json.decode(said)
    older["identity"] |= {"pid": 4_000_000, "started": 7}
    copy.write_bytes(msgspec.json.encode(older))
    async with node(state_dir):
        again = copy.read_bytes()
    line.write_bytes(b"")
    async with node(state_dir) as here:
        here.supervisor.want(order())
        after = await here.until(lambda s: s.state == "ready" and s.adopted)
        await here.supervisor.stop_all()

        assert again == said
        assert after.restarts == 0


async def test_a_copy_that_is_whole_stays_beside_a_line_that_is_not(
    state_dir: Path,
) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready")
    line = state_dir / "ledger" / "fake-0.json"
    copy = state_dir / "ledger" / ".fake-0.json.copy"
    said = copy.read_bytes()
    line.write_bytes(said.replace(b'"restarts":0', b'"restarts":"x"'))
    async with node(state_dir) as here:
        again = copy.read_bytes()
        await here.supervisor.stop_all()

        assert again == said


async def test_a_copy_of_a_dead_engine_goes_though_its_line_was_lost(
    state_dir: Path,
) -> None:
    """It lay there for ever, and what the engine left in its cgroup went on."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        pid = (await here.state("ready")).pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (state_dir / "ledger" / "fake-0.json").write_bytes(b"")
    async with node(state_dir) as here:
        assert here.supervisor.statuses() == ()

    left = [path.name for path in (state_dir / "ledger").iterdir()]
    assert left == ["fake-0.unreadable"]


async def test_a_stale_copy_does_not_end_an_engine_that_is_found_by_its_tag(
    state_dir: Path,
) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
    copy = state_dir / "ledger" / ".fake-0.json.copy"
    older = msgspec.json.decode(copy.read_bytes())
    older["identity"] |= {"pid": 4_000_000, "started": 7}
    copy.write_bytes(msgspec.json.encode(older))
    (state_dir / "ledger" / "fake-0.json").write_bytes(b"")
    async with node(state_dir) as here:
        found = await here.state("unhealthy")
        await here.supervisor.stop_all()

        assert found.pid == before.pid
        assert not await living(state_dir)


async def test_nothing_is_left_of_a_stopped_engine(state_dir: Path) -> None:
    ledger, _ = await run_sync(kept, state_dir)

    await run_sync(ledger.forget, "fake-0")

    assert not list(ledger.folder.iterdir())
