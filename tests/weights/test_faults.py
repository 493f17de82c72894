"""Servers that misbehave, and what of it costs what."""

import hashlib
from pathlib import Path

import pytest

from llmgw.errors import WeightsError
from llmgw.wire import Progress
from tests.fakes.weights_server import (
    Flip,
    Redirect,
    Status,
    WeightsServer,
    WrongRange,
)
from tests.weights.conftest import MIB, asking, noise


def ignore(_: Progress) -> None:
    pass


@pytest.mark.parametrize("times", [1, 2])
async def test_a_flipped_range_with_a_digest_of_its_own_costs_one_range(
    tmp_path: Path, server: WeightsServer, times: int
) -> None:
    """T73: one bad range costs one range, where the server says what it should be."""
    content = noise(40 * MIB)
    server.put("/model", content).digests = True
    server.spoil("/model", Flip(offset=13 * MIB), times=times)

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.read_bytes() == content
    assert server.sent() <= len(content) + times * 8 * MIB + 1


async def test_a_flipped_range_is_found_by_a_second_read(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T73: with only the whole file's digest, reading stops where the fault was."""
    content = noise(40 * MIB)
    server.put("/model", content)
    server.spoil("/model", Flip(offset=9 * MIB))

    async with asking(tmp_path) as weights:
        digest = hashlib.sha256(content).hexdigest()
        path = await weights.ensure(server.url("/model"), digest, ignore)

    assert path.read_bytes() == content
    assert server.sent() <= len(content) + 16 * MIB + 1


async def test_another_range_than_was_asked_for_is_not_taken(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(20 * MIB)
    server.put("/model", content)
    server.spoil("/model", WrongRange(by=1))

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.read_bytes() == content


async def test_a_busy_server_is_asked_again_when_it_says(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(MIB))
    server.spoil("/model", Status(503, retry_after="0"), times=1)
    server.spoil("/model", Status(429, retry_after="0"), times=2)

    async with asking(tmp_path) as weights:
        path = await weights.ensure(server.url("/model"), None, ignore)

    assert path.stat().st_size == MIB


async def test_one_that_asks_for_an_hour_is_left_to_the_back_off(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(MIB))
    server.spoil("/model", Status(503, retry_after="3600"), times=None)

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="503") as refused:
            await weights.ensure(server.url("/model"), None, ignore)

    assert not refused.value.final
    assert len(server.requests) == 1


async def test_a_digest_the_server_denies_costs_no_byte(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T71: what cannot become the file that is wanted is not begun."""
    content = noise(9 * MIB)
    file = server.put("/model", content)
    file.says_sha256 = hashlib.sha256(content).hexdigest()

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="is wanted") as refused:
            await weights.ensure(server.url("/model"), "1" * 64, ignore)

    assert refused.value.final
    assert server.sent() == 1


async def test_redirects_in_circles_end(tmp_path: Path, server: WeightsServer) -> None:
    server.put("/model", b"")
    server.spoil("/model", Redirect(to="/model"), times=None)

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="circles") as refused:
            await weights.ensure(server.url("/model"), None, ignore)

    assert refused.value.final


async def test_a_body_of_unknown_length_needs_a_digest(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(MIB)
    file = server.put("/model", content)
    file.ranges, file.unframed = False, True
    digest = hashlib.sha256(content).hexdigest()

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="how long"):
            await weights.ensure(server.url("/model"), None, ignore)
        path = await weights.ensure(server.url("/model"), digest, ignore)

    assert path.read_bytes() == content


async def test_a_body_that_was_compressed_on_the_way_is_not_the_file(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(1000)).encoding = "gzip"

    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="gzip") as refused:
            await weights.ensure(server.url("/model"), None, ignore)

    assert refused.value.final
