"""A bad launch is told from bad luck: it is `failed`, with the reason, at once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from llmgw.errors import EngineError
from llmgw.supervisor import gate
from llmgw.supervisor.backend import Place
from llmgw.supervisor.launch import Launch, Limits
from llmgw.supervisor.order import Order
from tests.supervisor.conftest import living, node, order


def launching(**changes: object) -> Order:
    """An order whose launch is this one, whatever the ports."""

    async def prepare(*_: object) -> Launch:
        return Launch(**{"argv": ("/bin/true",), **changes})  # pyright: ignore[reportArgumentType]

    return Order(id="fake-0", generation=1, digest="d1", prepare=prepare)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"argv": ("/bin/echo", "a\0b")}, "holds a NUL byte"),
        ({"env": {"KEY": "a\0b"}}, "holds a NUL byte"),
        ({"argv": ("/bin/echo", "x" * 300_000)}, "Argument list too long"),
        ({"argv": ("/no/such/program",)}, "No such file or directory"),
        ({"argv": ("/etc/passwd",)}, "Permission denied"),
        ({"argv": ("/",)}, "Permission denied"),
        ({"argv": ("/bin/true", "x"), "cwd": "/no/such"}, "enter the directory"),
        ({"limits": Limits(cpuset=(4000,))}, "set the limits"),
    ],
    ids=["nul", "nul-env", "long", "absent", "mode", "folder", "cwd", "cpuset"],
)
async def test_what_can_never_run_is_failed_and_not_tried_again(
    state_dir: Path, changes: dict[str, object], reason: str
) -> None:
    """T71's rule for engines: one attempt, the reason, no loop."""
    async with node(state_dir) as here:
        here.supervisor.want(launching(**changes))
        failed = await here.state("failed")

        assert reason in (failed.reason or "")
        assert failed.restarts == 0
        assert not await living(state_dir)
        assert not list((state_dir / "ledger").iterdir())


async def test_a_script_of_an_unknown_kind_is_failed(state_dir: Path) -> None:
    await run_sync(state_dir.mkdir)
    script = state_dir / "engine"
    await run_sync(script.write_bytes, b"\x01\x02\x03")
    await run_sync(script.chmod, 0o755)
    async with node(state_dir) as here:
        here.supervisor.want(launching(argv=(str(script),)))
        failed = await here.state("failed")

        assert "Exec format error" in (failed.reason or "")


@pytest.mark.parametrize("port", [0, -1, 65536, 70000])
async def test_a_port_that_is_none_is_failed(state_dir: Path, port: int) -> None:
    async with node(state_dir) as here:
        here.supervisor.want(order(port=port))
        failed = await here.state("failed")

        assert f"{port} is no port" in (failed.reason or "")


async def test_an_engine_that_exits_with_the_same_code_is_bad_luck(
    state_dir: Path,
) -> None:
    """126 may be the engine's own: a shell says it of what it could not run."""
    async with node(state_dir) as here:
        argv = ("/bin/sh", "-c", "exit 126")
        here.supervisor.want(order("fake-0", argv=argv, health=None))
        down = await here.until(lambda s: s.restarts >= 2)

        assert down.exit is not None
        assert down.exit.code == 126
        assert down.state != "failed"


def test_a_refusal_of_an_earlier_launch_is_not_this_ones(tmp_path: Path) -> None:
    (tmp_path / "launch.refused").write_text("2 cannot execute x: No such file")
    before = gate.refused(tmp_path)
    place = Place(run=tmp_path, log=tmp_path / "log", env={})
    gate.write(Launch(argv=("/bin/true",)), place)

    assert before is not None
    assert before.final
    assert gate.refused(tmp_path) is None


def test_a_file_that_is_being_written_is_bad_luck(tmp_path: Path) -> None:
    """ETXTBSY: a build that is unpacked at this moment can be run in the next."""
    (tmp_path / "launch.refused").write_text("26 cannot execute x: Text file busy")

    refused = gate.refused(tmp_path)

    assert refused is not None
    assert not refused.final


# A full disk and its kin -------------------------------------------------------------


@pytest.fixture
def small(state_dir: Path) -> Iterator[Path]:
    """A state_dir on a file system of its own, of 200 kB."""
    state_dir.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "small", str(state_dir)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("run as root where file systems may be mounted")
    yield state_dir
    subprocess.run(["umount", "--lazy", str(state_dir)], check=True)


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return filler


async def test_a_full_state_dir_is_named_and_the_engine_is_not_blamed(
    small: Path,
) -> None:
    """It starts by itself once there is room."""
    filler = await run_sync(_fill, small)
    async with node(small, restart_base=0.05, restart_max=0.1) as here:
        here.supervisor.want(order())
        down = await here.state("backoff")
        problems = here.supervisor.problems()
        await run_sync(filler.unlink)
        await here.state("ready")
        await here.supervisor.stop_all()

        assert here.supervisor.problems() == ()
        assert await run_sync((small / "ledger-tag").read_text)
        assert "state_dir cannot be written: No space left on device" in (
            down.reason or ""
        )
        assert f"0 of 0 MB are free on {small}" in (down.reason or "")
        assert "fix: make room there" in (down.reason or "")
        assert sys.executable not in (down.reason or "")
        assert [problem.code for problem in problems] == ["state_dir"]


async def test_a_read_only_state_dir_is_named_with_what_to_do(small: Path) -> None:
    async with node(small, restart_base=0.05, restart_max=0.1) as here:
        await run_sync(_remount, small, "ro")
        here.supervisor.want(order())
        down = await here.state("backoff")
        await run_sync(_remount, small, "rw")
        await here.state("ready")
        await here.supervisor.stop_all()

        assert "Read-only file system" in (down.reason or "")
        assert "mount it writable" in (down.reason or "")


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


async def test_a_full_disk_leaves_no_descriptor_and_no_process(small: Path) -> None:
    """Every try that fails cleans up after itself."""
    async with node(small, restart_base=0.02, restart_max=0.02) as here:
        filler = await run_sync(_fill, small)
        here.supervisor.want(order())
        await here.until(lambda s: s.restarts >= 2)
        before = await run_sync(os.listdir, "/proc/self/fd")
        await here.until(lambda s: s.restarts >= 12)
        after = await run_sync(os.listdir, "/proc/self/fd")

        assert len(after) <= len(before) + 2
        assert not await living(small)
        await run_sync(filler.unlink)
        await here.state("ready")
        await here.supervisor.stop_all()


def test_what_is_wrong_with_a_launch_is_said_before_anything_is_started(
    tmp_path: Path,
) -> None:
    place = Place(run=tmp_path, log=tmp_path / "log", env={})

    with pytest.raises(EngineError, match="NUL byte") as caught:
        gate.write(Launch(argv=("a\0",)), place)
    assert caught.value.final
    assert not (tmp_path / "launch").exists()
