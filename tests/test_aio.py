"""The newest value wins, and the first to end wins."""

import anyio
import pytest

from llmgw.aio import Latest, race


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
