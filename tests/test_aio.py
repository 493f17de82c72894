"""The newest value wins, the first to end wins, and nobody takes all the room."""

import os
import resource
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial

import anyio
import anyio.abc
import psutil
import pytest

from llmgw import aio
from llmgw.aio import Latest, first, race, serve


async def test_a_reader_that_was_busy_sees_the_newest_value_once() -> None:
    latest = Latest("a")
    seen, value = await latest.newer_than(-1)
    latest.set("b")
    latest.set("c")

    assert value == "a"
    assert await latest.newer_than(seen) == (2, "c")
    with anyio.move_on_after(0.02) as scope:
        await latest.newer_than(2)
    assert scope.cancelled_caught


async def test_the_first_to_end_wins_and_the_others_are_cancelled() -> None:
    ended: list[str] = []

    async def slow() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("slow")
        return "slow"

    async def quick() -> str:
        return "quick"

    assert await race(slow, quick) == "quick"
    assert ended == ["slow"]


async def test_an_error_comes_out_as_itself() -> None:
    async def broken() -> str:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await race(broken, broken)


class Lost(Exception):
    pass


class Contest:
    """Contenders by name: seconds until they win, or Lost."""

    def __init__(self, **after: float | None) -> None:
        self.after = after
        self.started: list[str] = []
        self.discarded: list[str] = []

    def contenders(self) -> Iterator[Callable[[], Awaitable[str]]]:
        for name in self.after:
            yield partial(self.run, name)

    async def run(self, name: str) -> str:
        self.started.append(name)
        after = self.after[name]
        if after is None:
            raise Lost
        await anyio.sleep(after)
        return name

    async def discard(self, name: str) -> None:
        self.discarded.append(name)

    async def first(self, head_start: float) -> str | None:
        with anyio.fail_after(5):
            return await first(
                self.contenders(), head_start, losing=Lost, discard=self.discard
            )


async def test_who_loses_makes_way_at_once_and_who_is_not_needed_is_not_asked() -> None:
    contest = Contest(a=None, b=None, c=0.0, d=0.0)

    assert await contest.first(head_start=3) == "c"
    assert contest.started == ["a", "b", "c"]


async def test_the_silent_one_goes_on_beside_the_next_and_may_still_win() -> None:
    contest = Contest(silent=0.05, next=10.0)

    assert await contest.first(head_start=0.01) == "silent"
    assert contest.started == ["silent", "next"]


async def test_nobody_is_none_and_a_surprise_is_not_swallowed() -> None:
    async def surprised() -> str:
        raise KeyError("x")

    assert await Contest(a=None, b=None).first(head_start=1) is None
    with pytest.raises(ExceptionGroup):
        await first([surprised], 1, losing=Lost, discard=Contest().discard)


async def test_a_second_winner_of_the_same_instant_is_discarded() -> None:
    both = anyio.Event()
    discarded: list[str] = []

    async def winner(name: str) -> str:
        if name == "a":
            await both.wait()
        else:
            both.set()
        return name

    async def discard(name: str) -> None:
        discarded.append(name)

    won = await first(
        [partial(winner, "a"), partial(winner, "b")],
        0.001,
        losing=Lost,
        discard=discard,
    )

    assert (won, discarded) == ("b", ["a"])


async def test_what_the_first_had_when_all_was_cancelled_is_discarded() -> None:
    """A connection made in the instant that the agent leaves is nobody's, and open."""
    discarded: list[str] = []

    async def discard(result: str) -> None:
        discarded.append(result)

    with anyio.CancelScope() as scope:

        async def one() -> str:
            scope.cancel()
            return "connection"

        await first([one], 1.0, losing=OSError, discard=discard)

    assert discarded == ["connection"]


async def test_no_more_than_so_many_are_served_at_once_and_all_in_the_end() -> None:
    """Those who connect by the thousand leave the others their descriptors."""
    present, most = 0, 0
    said: list[bytes] = []
    go_on = anyio.Event()

    async def answer(stream: anyio.abc.SocketStream) -> None:
        nonlocal present, most
        async with stream:
            present += 1
            most = max(most, present)
            await go_on.wait()
            await stream.send(b"x")
            present -= 1

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(partial(serve, listener, answer, at_once=3))
        several = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(8)]
        with anyio.fail_after(5):
            while present < 3:
                await anyio.sleep(0)
        go_on.set()
        said += [await one.receive() for one in several]
        for one in several:
            await one.aclose()
        group.cancel_scope.cancel()

    assert said == [b"x"] * 8
    assert most == 3


async def test_where_no_descriptor_is_left_there_is_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio, "AGAIN", 0.0)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"x")

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []
    async with listener, anyio.create_task_group() as group:
        one = await anyio.connect_tcp("127.0.0.1", port)
        few = psutil.Process().num_fds() + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
        try:
            with suppress(OSError):
                while True:
                    filled.append(os.dup(0))
            group.start_soon(partial(serve, listener, answer, at_once=3))
            for _ in range(20):
                await anyio.sleep(0)
        finally:
            for each in filled:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        with anyio.fail_after(5):
            assert await one.receive() == b"x"
        await one.aclose()
        group.cancel_scope.cancel()

    assert filled
