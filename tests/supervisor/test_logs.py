"""Logs are cut while they are written, and nothing is lost or held up by it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from llmgw.supervisor import logs
from llmgw.supervisor.logs import Logs, last_lines, rotate
from tests.supervisor.conftest import fact, node, order

MIB = 1 << 20


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """One file system takes out a file's front, the other only the blocks."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("mount a tmpfs on /dev/shm to test logs on one")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def whole(path: Path) -> bytes:
    """All that is kept, oldest first, without the holes."""
    parts = sorted(path.parent.glob(f"{path.name}.*"), key=lambda p: -int(p.suffix[1:]))
    with path.open("rb") as live:
        live.seek(logs.start_of(live.fileno()))
        return b"".join(part.read_bytes() for part in parts) + live.read()


def used(path: Path) -> int:
    return sum(
        part.stat().st_blocks * 512 for part in path.parent.glob(f"{path.name}*")
    )


def test_each_byte_is_kept_once_and_in_order(folder: Path) -> None:
    path = folder / "e.log"
    writer = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    written = b""
    for number in range(20):
        piece = (f"{number:04} ".encode() * 40_000)[: 150_000 + number] + b"\n"
        os.write(writer, piece)
        written += piece
        rotate(path, 256 * 1024, keep=50)
    os.close(writer)

    assert whole(path) == written
    assert len(list(folder.iterdir())) > 5


def test_only_so_much_is_kept(folder: Path) -> None:
    """T93: the newest, in as many files as asked."""
    path = folder / "e.log"
    writer = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(40):
        os.write(writer, b"x" * 299_999 + b"\n")
        rotate(path, 512 * 1024, keep=2)
    os.close(writer)

    assert sorted(p.name for p in folder.iterdir()) == ["e.log", "e.log.1", "e.log.2"]
    assert used(path) < 3 * (512 * 1024 + 300_000) + logs.BLOCK


def test_a_small_log_is_left_alone(folder: Path) -> None:
    path = folder / "e.log"
    path.write_bytes(b"x" * 1000)

    assert rotate(path, 1001, keep=2) == 0
    assert [p.name for p in folder.iterdir()] == ["e.log"]


def test_last_lines_are_of_this_run_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "e.log"
    path.write_bytes(b"of before\n" + b"one\n\ntwo\nthree\n" + b"y" * 9000 + b"\nend\n")

    assert last_lines(path, since=10, lines=2).endswith("y\nend")
    assert len(last_lines(path)) <= logs.LAST_BYTES
    assert last_lines(path, since=path.stat().st_size) == ""
    assert last_lines(tmp_path / "absent") == ""


WRITER = """
import os, sys, time
worst = 0.0
for number in range(int(sys.argv[1])):
    block = b"".join(b"%09d %080d\\n" % (number * 1000 + n, 0) for n in range(1000))
    begun = time.monotonic()
    os.write(1, block)
    worst = max(worst, time.monotonic() - begun)
    time.sleep(0.0005)
os.write(2, b"%.4f" % worst)
"""


async def test_an_engine_that_floods_its_log_is_not_held_up(folder: Path) -> None:
    """T93: a hundred megabytes a second, cut all the while, and every line is there."""
    path = folder / "e.log"
    blocks = 700  # of 91,000 bytes
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    slowest = os.open(folder / "slowest", os.O_WRONLY | os.O_CREAT)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-S", "-c", WRITER, str(blocks)],
        {},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, slowest, 2),
        ],
    )
    os.close(out)
    os.close(slowest)
    cuts = 0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        before = len(list(folder.iterdir()))
        await run_sync(rotate, path, 2 * MIB, 1000)
        cuts += len(list(folder.iterdir())) - before
    lines = whole(path).splitlines()

    assert cuts > 5
    assert [int(line[:9]) for line in lines] == list(range(blocks * 1000))
    assert float((folder / "slowest").read_text()) < 1.0


async def test_following_goes_on_through_a_cut(folder: Path) -> None:
    path = folder / "e.log"
    path.write_bytes(b"".join(b"%06d\n" % n for n in range(1000)))
    log = Logs(128 * 1024, 2, lambda: [path])
    seen = b""

    async with anyio.create_task_group() as group:
        group.start_soon(log.run)

        async def write() -> None:
            with path.open("ab", buffering=0) as file:
                for n in range(1000, 60_000, 500):
                    file.write(b"".join(b"%06d\n" % i for i in range(n, n + 500)))
                    await anyio.sleep(0.01)

        with anyio.fail_after(20):
            async for chunk in log.read(path, lines=3, follow=True):
                if not seen:
                    group.start_soon(write)
                seen += chunk
                if seen.endswith(b"059999\n"):
                    break
        group.cancel_scope.cancel()

    numbers = [int(line) for line in seen.splitlines()]
    assert numbers == list(range(997, 60_000))
    assert (folder / "e.log.1").exists()


async def test_the_supervisor_caps_the_logs_of_its_engines(state_dir: Path) -> None:
    async with node(state_dir, log_max_bytes=MIB, log_keep=1) as here:
        here.supervisor.want(order("fake-0", "--chatter", "10000000"))
        await here.state("ready")
        path = here.supervisor.log_path("fake-0")
        rotated = path.with_name("fake-0.log.1")
        await fact(rotated.exists, within=10)
        first = rotated.stat().st_ino
        await fact(lambda: rotated.stat().st_ino != first, within=10)
        tail = [chunk async for chunk in here.supervisor.log("fake-0", lines=2)]

        assert used(path) < 40 * MIB
        assert b"".join(tail).count(b"\n") == 2
        await here.supervisor.stop_all()
