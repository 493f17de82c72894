"""What every backend owes a keeper, over all of them.

The systemd one needs a machine that systemd runs: test_keeping_systemd.py boots one and
runs this file in it.
"""

import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync

from llmgw.errors import EngineError
from llmgw.supervisor import exec, files, procfs, reaper, systemd
from llmgw.supervisor.backend import Backend, Engine
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from llmgw.supervisor.process import Processes
from llmgw.supervisor.systemd import Units

# Where the guest's template unit reads launches.
GUEST_STATE = Path("/run/llmgw-contract")


class Bench:
    """One backend, one replica, and the line that the ledger would have."""

    def __init__(self, make: Callable[[Ledger], Backend], state: Path) -> None:
        self.ledger = Ledger(state)
        self.ledger.open()
        self.make = make
        self.backend = make(self.ledger)
        self.id = f"c-{secrets.token_hex(4)}"
        self.state = state
        self.recorded: list[tuple[Identity, str | None]] = []
        self.launch = Launch(argv=("/bin/true",))
        self.engine: Engine | None = None

    async def start(
        self,
        *argv: str,
        record: Callable[[Identity, str | None], None] | None = None,
        **changes: object,
    ) -> Engine:
        self.launch = Launch(argv=argv, **changes)  # pyright: ignore[reportArgumentType]
        place = await run_sync(
            files.lay_out, self.state, self.id, self.launch, self.ledger.tags(self.id)
        )

        def keep(identity: Identity, cgroup: str | None) -> None:
            self.recorded.append((identity, cgroup))

        self.engine = await self.backend.start(
            self.id, self.launch, place, record or keep
        )
        return self.engine

    def entry(self, line: int = -1) -> Entry:
        identity, cgroup = self.recorded[line]
        return Entry(
            machine=self.ledger.machine,
            id=self.id,
            generation=1,
            digest="d1",
            identity=identity,
            launch=self.launch,
            backend=self.backend.name,
            cgroup=cgroup,
        )

    async def adopt(self, line: int = -1) -> Engine | None:
        """As the next agent does, that knows only the ledger."""
        return await self.make(self.ledger).adopt(self.entry(line))

    @property
    def run(self) -> Path:
        return files.run_dir(self.state, self.id)

    async def wait_for(self, name: str) -> str:
        path = self.run / name
        with anyio.fail_after(10):
            while not await run_sync(lambda: path.exists() and path.read_text()):
                await anyio.sleep(0.01)
        return await run_sync(path.read_text)


def _processes(ledger: Ledger) -> Backend:
    return Processes(ledger, None)


@pytest.fixture(params=["process", "systemd"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[Bench]:
    if request.param == "process":
        reaper.become_subreaper()  # as the supervisor does: what is left is below us
        made = await run_sync(Bench, _processes, tmp_path)
    elif await run_sync(systemd.is_there):
        made = await run_sync(Bench, Units, GUEST_STATE)
    else:
        pytest.skip("systemd does not run here: test_keeping_systemd.py boots it")
    yield made
    if made.engine:
        await made.engine.stop(signal.SIGKILL, 0)


def sh(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def is_alive(pid: int) -> bool:
    stat = await run_sync(procfs.stat, pid)
    return stat is not None and stat.is_alive


async def test_exactly_what_was_written_is_executed(bench: Bench) -> None:
    """Spaces and line feeds, the environment, no more of ours. T62: HOME and caches."""
    program = (
        "import json, os, sys\n"
        "got = [sys.argv[1:], dict(os.environ), os.getcwd()]\n"
        "open('got.new', 'w').write(json.dumps(got))\n"
        "os.rename('got.new', 'got')\n"
        "import time; time.sleep(60)\n"
    )
    arguments = ("a b", "line\nfeed", "ünï", "$HOME", "")
    await bench.start(
        sys.executable, "-S", "-c", program, *arguments, env={"OWN": "x y=z"}
    )
    got = await bench.wait_for("got")

    kind = tuple[list[str], dict[str, str], str]
    argv, env, cwd = msgspec.json.decode(got, type=kind)
    assert tuple(argv) == arguments
    assert env["OWN"] == "x y=z"
    assert env["LLMGW_REPLICA"] == bench.id
    assert {"HOME", "TMPDIR", "XDG_CACHE_HOME"} <= env.keys()
    assert "INVOCATION_ID" not in env
    assert "NOTIFY_SOCKET" not in env
    assert cwd == str(bench.run)


async def test_nothing_is_inherited_that_would_change_its_ways(bench: Bench) -> None:
    """Ignored signals, blocked signals and descriptors are none of the engine's."""
    script = (
        "grep -E '^Sig(Blk|Ign)' /proc/self/status > got.new;"
        "ls /proc/self/fd | wc -l >> got.new; mv got.new got; exec sleep 60"
    )
    await bench.start(*sh(script))
    got = (await bench.wait_for("got")).split()

    # 32 and 33 are the C library's own, and nobody else's to set.
    assert [int(mask, 16) & ~0x180000000 for mask in (got[1], got[3])] == [0, 0]
    assert int(got[4]) <= 4  # and the folder that ls reads


async def test_it_is_recorded_before_its_first_instruction(bench: Bench) -> None:
    mark = bench.run / "mark"
    seen: list[bool] = []

    def record(identity: Identity, cgroup: str | None) -> None:
        bench.recorded.append((identity, cgroup))
        if len(seen) == 0:
            seen.append(mark.exists())

    await bench.start(*sh("echo x > mark; exec sleep 60"), record=record)
    await bench.wait_for("mark")

    assert seen == [False]


async def test_one_that_cannot_be_recorded_does_not_run(bench: Bench) -> None:
    def record(_: Identity, __: str | None) -> None:
        raise EngineError("the disk is full")

    with pytest.raises(EngineError, match="the disk is full"):
        await bench.start(*sh("touch mark; exec sleep 60"), record=record)
    await bench.start(*sh("echo y > other; exec sleep 60"))
    await bench.wait_for("other")

    assert not await run_sync((bench.run / "mark").exists)


@pytest.mark.parametrize(
    ("script", "code", "sign"), [("exit 7", 7, None), ("kill -SEGV $$", None, 11)]
)
async def test_how_it_ended_is_told(
    bench: Bench, script: str, code: int | None, sign: int | None
) -> None:
    engine = await bench.start(*sh(f"sleep 0.3; {script}"))
    with anyio.fail_after(5):
        exit = await engine.exited()

    assert (exit.code, exit.signal) == (code, sign)


async def test_what_cannot_be_executed_ends_at_once_and_says_so(bench: Bench) -> None:
    try:
        engine = await bench.start("/no/such/engine")
    except EngineError:
        return  # systemd may see the end before it says that it has started
    with anyio.fail_after(5):
        exit = await engine.exited()

    assert exit.code == exec.CANNOT_EXECUTE


async def test_a_stop_asks_first(bench: Bench) -> None:
    engine = await bench.start(
        *sh(
            "trap 'echo bye > bye; exit 3' TERM; echo x > up;"
            "while :; do sleep 0.1; done"
        )
    )
    await bench.wait_for("up")
    exit = await engine.stop(signal.SIGTERM, 5)
    bench.engine = None

    assert await bench.wait_for("bye") == "bye\n"
    assert exit.code == 3


async def test_a_stop_insists_and_takes_everything_along(bench: Bench) -> None:
    """T54: one ignores the request, one has left the session and has no parent."""
    engine = await bench.start(
        *sh(
            "trap '' TERM; (setsid sh -c 'echo $$ > child; exec sleep 60' &);"
            "while :; do sleep 0.1; done"
        )
    )
    child = int(await bench.wait_for("child"))
    exit = await engine.stop(signal.SIGTERM, 0.2)
    bench.engine = None

    assert exit.signal == signal.SIGKILL
    assert not await is_alive(engine.identity.pid)
    assert not await is_alive(child)


async def test_a_stop_finishes_though_it_is_cancelled(bench: Bench) -> None:
    engine = await bench.start(*sh("trap '' TERM; echo x > up; exec sleep 60"))
    await bench.wait_for("up")
    with anyio.move_on_after(0.05):
        await engine.stop(signal.SIGTERM, 0.3)
    bench.engine = None

    assert not await is_alive(engine.identity.pid)


async def test_the_next_agent_adopts_the_same_process(bench: Bench) -> None:
    engine = await bench.start(*sh("echo x > up; exec sleep 60"))
    await bench.wait_for("up")
    pid = engine.identity.pid
    engine.close()
    adopted = await bench.adopt()
    assert adopted
    bench.engine = adopted

    assert adopted.adopted
    assert adopted.identity.pid == pid
    assert adopted.identity == engine.identity


async def test_one_that_has_ended_is_not_adopted(bench: Bench) -> None:
    engine = await bench.start(*sh("echo x > up; exec sleep 60"))
    await bench.wait_for("up")
    os.kill(engine.identity.pid, signal.SIGKILL)
    await engine.exited()
    await engine.stop(signal.SIGKILL, 0)
    bench.engine = None

    assert await bench.adopt() is None


async def test_another_start_of_the_same_replica_is_not_taken_for_it(
    bench: Bench,
) -> None:
    first = await bench.start(*sh("echo x > up; exec sleep 60"))
    await bench.wait_for("up")
    old = len(bench.recorded) - 1
    await first.stop(signal.SIGKILL, 0)
    await bench.start(*sh("echo x > again; exec sleep 60"))
    await bench.wait_for("again")

    assert await bench.adopt(old) is None


async def test_one_of_another_boot_is_not_adopted(bench: Bench) -> None:
    await bench.start(*sh("echo x > up; exec sleep 60"))
    await bench.wait_for("up")
    identity, cgroup = bench.recorded[-1]
    bench.recorded.append(
        (
            Identity(
                pid=identity.pid,
                started=identity.started,
                boot="another",
                invocation=identity.invocation,
            ),
            cgroup,
        )
    )

    assert await bench.adopt() is None


async def test_what_it_says_is_in_its_log(bench: Bench) -> None:
    engine = await bench.start(*sh("echo out; echo err >&2; sleep 0.3; exit 1"))
    await engine.exited()
    path = files.log_path(bench.state, bench.id)

    assert await run_sync(path.read_text) == "out\nerr\n"


async def test_how_much_it_has_loaded_can_be_seen(bench: Bench) -> None:
    program = (
        "import time; open('big', 'wb').write(bytes(2 << 20)); open('big', 'rb').read()"
        "; time.sleep(60)"
    )
    engine = await bench.start(sys.executable, "-S", "-c", program)
    with anyio.fail_after(5):
        while (await run_sync(engine.effort))[0] < 1_000_000:
            await anyio.sleep(0.01)
