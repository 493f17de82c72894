"""Fetching, whole: a real server, the real fetch process, a real disk."""

import hashlib
import os
import signal
import threading
import time
from pathlib import Path

import anyio
import pytest

from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights.fetch import Weights
from llmgw.wire import Progress
from tests.fakes.weights_server import Cut, Reset, Status, WeightsServer
from tests.weights.conftest import MIB, asking, noise


def ignore(_: Progress) -> None:
    pass


async def test_a_file_comes_in_ranges_and_lies_whole(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(20 * MIB + 17)
    server.put("/a/model.gguf", content)
    seen: list[Progress] = []

    async with asking(tmp_path) as weights:
        path = await weights.ensure(
            server.url("/a/model.gguf"),
            "sha256:" + hashlib.sha256(content).hexdigest(),
            seen.append,
        )

    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o644
    assert len({r.start for r in server.asked("/a/model.gguf")}) >= 2
    assert seen[-1] == Progress(what="fetching", done=len(content), total=len(content))
    assert server.sent() <= len(content) + 1


async def test_what_lies_whole_is_not_asked_for_again(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(MIB))
    async with asking(tmp_path) as weights:
        first = await weights.ensure(server.url("/model"), None, ignore)
        before = len(server.requests)

        assert await weights.ensure(server.url("/model"), None, ignore) == first

    assert len(server.requests) == before


async def test_what_lies_whole_needs_no_process(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(MIB))
    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    idle = Weights(keys.Weights(), tmp_path)  # it never runs

    with anyio.fail_after(5):
        assert await idle.ensure(server.url("/model"), None, ignore) == path


async def test_a_file_cut_short_later_is_not_taken_for_whole(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(MIB)
    server.put("/model", content)
    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)
        with path.open("r+b") as file:
            file.truncate(1000)

        assert await weights.ensure(server.url("/model"), None, ignore) == path

    assert path.read_bytes() == content


async def test_a_process_that_dies_is_said_to_have_and_another_goes_on(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(24 * MIB)
    file = server.put("/model", content)
    file.rate = 2 * MIB
    began = anyio.Event()
    told: list[WeightsError] = []

    async with asking(tmp_path) as weights:

        async def ask() -> None:
            try:
                await weights.ensure(server.url("/model"), None, lambda _: began.set())
            except WeightsError as error:
                told.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await began.wait()
            for pid in children():
                os.kill(pid, signal.SIGKILL)
        file.rate = None
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert [(e.final, "killed" in e.what) for e in told] == [(False, True)]
    assert path.read_bytes() == content


def children() -> list[int]:
    task = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children"
    found = [int(pid) for pid in Path(task).read_text().split()]
    return [
        p for p in found if b"weights.child" in Path(f"/proc/{p}/cmdline").read_bytes()
    ]


async def test_a_fetch_that_hangs_holds_up_nobody_else(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T76: it is a process of its own; stopped dead, it stops nothing here."""
    server.put("/small", b"x")
    server.put("/model", noise(8 * MIB)).rate = 2 * MIB
    began = anyio.Event()

    async with asking(tmp_path) as weights:
        small = await weights.ensure(server.url("/small"), None, ignore)

        async def ask() -> None:
            await weights.ensure(server.url("/model"), None, lambda _: began.set())

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await began.wait()
            stopped = children()
            assert stopped
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            with anyio.fail_after(10):
                assert list(weights.fetching) == [server.url("/model")]
                await weights.hold([server.url("/small")])
                again = await weights.ensure(server.url("/small"), None, ignore)
                assert again == small
            server.files["/model"].rate = None
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

        assert not weights.fetching


async def test_nobody_waiting_ends_the_transfer_and_keeps_what_came(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(24 * MIB)
    file = server.put("/model", content)
    file.rate = 2 * MIB
    came = anyio.Event()

    async with asking(tmp_path) as weights:
        async with anyio.create_task_group() as group:

            def watch(progress: Progress) -> None:
                if progress.done > 4 * MIB:
                    came.set()

            async def ask() -> None:
                await weights.ensure(server.url("/model"), None, watch)

            group.start_soon(ask)
            await came.wait()
            assert list(weights.fetching) == [server.url("/model")]
            group.cancel_scope.cancel()
        assert not weights.fetching
        before = len(server.requests)
        file.rate = None
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.read_bytes() == content
    again = sum(r.end - r.start for r in server.requests[before:])
    assert again <= len(content) - 4 * MIB + 1


async def test_one_transfer_serves_all_who_ask(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T74: one model for two replicas is one transfer with two who wait."""
    content = noise(9 * MIB)
    server.put("/model", content)
    paths: list[Path] = []

    async with asking(tmp_path) as weights:

        async def ask() -> None:
            paths.append(await weights.ensure(server.url("/model"), None, ignore))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)

    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == content
    assert server.sent() <= len(content) + 1


@pytest.mark.parametrize("fault", [Reset(at=3 * MIB + 5), Cut(at=MIB - 1)])
async def test_a_broken_range_goes_on_where_it_broke(
    tmp_path: Path, server: WeightsServer, fault: Reset | Cut
) -> None:
    content = noise(18 * MIB)
    server.put("/model", content)
    server.spoil("/model", fault, times=2)

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.read_bytes() == content
    # A reset throws away what the kernel had not handed over yet.
    assert server.sent() <= len(content) + 8 * MIB


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_final_answer_is_one_attempt_and_a_reason(
    tmp_path: Path, server: WeightsServer, code: int
) -> None:
    """T71: what will not get better is not tried again."""
    server.put("/model", b"x" * 100)
    server.spoil("/model", Status(code), times=None)

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match=str(code)) as refused:
            await weights.ensure(server.url("/model"), None, ignore)

    assert refused.value.final
    assert len(server.requests) == 1


async def test_a_wrong_digest_publishes_nothing(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(MIB))

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="sha256") as refused:
            await weights.ensure(server.url("/model"), "0" * 64, ignore)

    assert refused.value.final
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_server_without_ranges_serves_all_the_same(
    tmp_path: Path, server: WeightsServer, chunked: bool
) -> None:
    content = noise(3 * MIB)
    file = server.put("/model", content)
    file.ranges, file.chunked = False, chunked
    server.spoil("/model", Cut(at=MIB))

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.read_bytes() == content


async def test_an_empty_file_is_a_file(tmp_path: Path, server: WeightsServer) -> None:
    server.put("/empty", b"")

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/empty"), None, ignore)

    assert path.read_bytes() == b""


async def test_a_file_of_this_machine_is_copied(tmp_path: Path) -> None:
    there = tmp_path / "there" / "model.gguf"
    there.parent.mkdir()
    there.write_bytes(noise(9 * MIB))

    async with asking(tmp_path / "cache") as weights:
        path = await weights.ensure(f"file://{there}", None, ignore)

    assert path.is_relative_to(tmp_path / "cache")
    assert path.read_bytes() == there.read_bytes()


async def test_the_limit_on_the_rate_is_kept(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(4 * MIB))
    settings = keys.Weights(rate_limit=8 * MIB)

    async with asking(tmp_path, settings) as weights:
        began = anyio.current_time()
        await weights.ensure(server.url("/model"), None, ignore)

    assert anyio.current_time() - began > 0.35


async def test_the_one_who_asks_sleeps_while_it_comes(
    tmp_path: Path, server: WeightsServer
) -> None:
    """A command that does not linger took a whole core for every fetch it waited on."""
    server.put("/model", noise(2 * MIB)).rate = 2 * MIB
    weights = Weights(keys.Weights(), tmp_path, linger=0.0)

    async with anyio.create_task_group() as group:
        await group.start(weights.run)
        began, busy = anyio.current_time(), time.thread_time()
        await weights.ensure(server.url("/model"), None, ignore)
        assert time.thread_time() - busy < (anyio.current_time() - began) / 4
        group.cancel_scope.cancel()


async def test_what_came_and_how_it_ended_is_counted(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(MIB)
    server.put("/model", content).ranges = False
    server.put("/other", content)

    async with asking(tmp_path) as weights:
        await weights.ensure(server.url("/model"), None, ignore)
        await weights.ensure(server.url("/other"), None, ignore)
        with pytest.raises(WeightsError):
            await weights.ensure(server.url("/gone"), None, ignore)

    tally = weights.tally
    assert (tally.came, weights.fetched.value, tally.failed) == (2 * MIB, 2, 1)
