"""TLS between node and control plane: both ends known, and each fault by its name."""

import shutil
import ssl
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream

from llmgw import pki
from llmgw.errors import Unreachable
from llmgw.session.http import Connection
from llmgw.tls import Certificates
from tests.fakes.certified import authority, certificates, server_side, settings
from tests.fakes.control_plane import (
    Closed,
    ControlPlane,
    Exchange,
    close,
    refuse,
    response,
)
from tests.fakes.linked import connected, link, running, until

T = TypeVar("T")


async def made(make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Keys are made and written in a thread: the loop is watched for blocking."""
    return await anyio.to_thread.run_sync(partial(make, *args, **kwargs))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return authority(tmp_path / "pki")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return authority(tmp_path / "other")


async def why_not(tmp_path: Path, one: ControlPlane, mine: Certificates) -> str:
    """What the node says of a server it cannot have."""
    async with running(one):
        node = link(tmp_path, one.url, certificates=mine)
        async with running(node):
            status = await until(node, lambda status: one.url in status.tried)
    return status.tried[one.url]


async def test_both_ends_show_a_certificate(tmp_path: Path, folder: Path) -> None:
    one = ControlPlane(tls=await made(server_side, folder))
    async with running(one):
        node = link(tmp_path, one, certificates=await made(certificates, folder))
        async with running(node):
            status = await connected(node)
            await one.hears("heartbeat")

    assert status.server == one.url
    assert one.url.startswith("https://")


async def test_another_authority_is_not_believed(
    tmp_path: Path, folder: Path, other: Path
) -> None:
    one = ControlPlane(tls=await made(server_side, other, trusts=folder))

    said = await why_not(tmp_path, one, await made(certificates, folder))

    assert "not signed by a CA in tls.ca_file" in said


@pytest.mark.parametrize(
    ("starts_in", "says"),
    [
        (timedelta(days=-30), "has expired by this machine's clock"),
        (timedelta(days=30), "not yet valid by this machine's clock"),
    ],
)
async def test_a_wrong_time_is_told_as_one(
    tmp_path: Path, folder: Path, starts_in: timedelta, says: str
) -> None:
    """T40."""
    one = ControlPlane(tls=await made(server_side, folder, starts_in=starts_in))

    said = await why_not(tmp_path, one, await made(certificates, folder))

    assert says in said
    assert "which says 2" in said  # a date


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_another_name_is_told_as_one(
    tmp_path: Path, folder: Path, host: str
) -> None:
    context = await made(server_side, folder, sans=("cp9.example",))

    said = await why_not(
        tmp_path,
        ControlPlane(tls=context, host=host),
        await made(certificates, folder),
    )

    assert "is for another name" in said
    assert host in said


async def test_a_server_name_is_looked_for_instead(
    tmp_path: Path, folder: Path
) -> None:
    context = await made(server_side, folder, sans=("cp9.example",))
    tls = await made(settings, folder, server_name="cp9.example")
    one = ControlPlane(tls=context)
    async with running(one):
        node = link(tmp_path, one, certificates=Certificates(tls, "n1"))
        async with running(node):
            await connected(node)


async def test_no_tls_where_tls_was_expected(tmp_path: Path, folder: Path) -> None:
    plain = ControlPlane()
    async with running(plain):
        url = plain.url.replace("http:", "https:")
        node = link(tmp_path, url, certificates=await made(certificates, folder))
        async with running(node):
            status = await until(node, lambda status: url in status.tried)

    assert "does not speak TLS there" in status.tried[url]


async def test_tls_where_none_was_expected(tmp_path: Path, folder: Path) -> None:
    """OpenSSL hangs up on plain HTTP; one that sends an alert is in the contracts."""
    one = ControlPlane(tls=await made(server_side, folder))
    async with running(one):
        url = one.url.replace("https:", "http:")
        node = link(tmp_path, url)
        async with running(node):
            status = await until(node, lambda status: url in status.tried)

    assert "may speak TLS" in status.tried[url]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_refused_certificate_is_told_as_one(
    tmp_path: Path, folder: Path, other: Path, version: ssl.TLSVersion
) -> None:
    """With TLS 1.3 it is told only after the handshake."""
    context = await made(server_side, folder, trusts=other)
    context.minimum_version = context.maximum_version = version

    said = await why_not(
        tmp_path, ControlPlane(tls=context), await made(certificates, folder)
    )

    assert "refuses this node's certificate: it is not signed by a CA that" in said


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_server_that_hangs_up_on_a_certificate_may_mean_that(
    tmp_path: Path, folder: Path, other: Path, version: ssl.TLSVersion
) -> None:
    context = await made(server_side, folder, trusts=other)
    context.minimum_version = context.maximum_version = version
    one = ControlPlane(tls=context)
    one.mute = True

    said = await why_not(tmp_path, one, await made(certificates, folder))

    assert "may refuse this node's certificate" in said


async def test_an_expired_certificate_of_the_node_is_told_as_one(
    tmp_path: Path, folder: Path
) -> None:
    context = await made(server_side, folder)
    tls = await made(settings, folder, starts_in=timedelta(days=-9), days=1)
    mine = Certificates(tls, "n1")

    said = await why_not(tmp_path, ControlPlane(tls=context), mine)

    assert "refuses this node's certificate: it says that it has expired" in said
    assert [problem.code for problem in mine.problems()] == ["tls_expired"]


async def test_an_answer_whose_end_is_that_of_the_connection_ends_nothing_more(
    tmp_path: Path, folder: Path
) -> None:
    """TLS refuses to send what plain TCP would lose: it was the end of the agent."""
    one = ControlPlane(tls=await made(server_side, folder))

    async def without_length(exchange: Exchange) -> None:
        answer = response({"code": "not_leader"}, 421)
        await exchange.stream.send(answer.replace(b"content-length:", b"x-was:"))
        raise Closed

    one.on["register"] = without_length
    async with running(one):
        node = link(tmp_path, one, certificates=await made(certificates, folder))
        async with running(node):
            await one.hears("register", 3)
            one.on.clear()
            await connected(node, one)


class Ended(ByteStream):
    """As anyio's TLS is to write to once its other end was seen to end."""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        raise anyio.EndOfStream

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def test_an_end_that_is_seen_in_sending_is_no_answer() -> None:
    """In a handshake that the other end began anew, TLS reads in order to write."""
    connection = Connection(
        Ended(),
        where="https://cp",
        authority="cp",
        credentials=(),
        path="",
        local="127.0.0.1",
        peer=("127.0.0.1", 1),
        explain=lambda error: Unreachable(str(error)),
        mute="",
    )

    with pytest.raises(Unreachable, match="closed the connection"):
        await connection.request("GET", "/v1/leader")


async def test_a_rotated_certificate_is_used_at_the_next_connection(
    tmp_path: Path, folder: Path, other: Path
) -> None:
    """T38: no restart: CA and both ends change while the agent runs."""
    tls = await made(settings, folder)
    one = ControlPlane(tls=await made(server_side, folder))
    two = ControlPlane(tls=await made(server_side, other))
    async with running(one, two):
        node = link(tmp_path, one, two, certificates=Certificates(tls, "n1"))
        async with running(node):
            await connected(node, one)
            fresh = await made(settings, other)
            for source, target in (
                (fresh.cert_file, tls.cert_file),
                (fresh.key_file, tls.key_file),
                (fresh.ca_file, tls.ca_file),
            ):
                await made(shutil.copy, source, target)
            one.on["register"] = refuse(421, "not_leader")
            one.on["heartbeat"] = close

            await connected(node, two)


async def test_a_clock_that_is_put_right_joins_without_a_restart(
    tmp_path: Path, folder: Path
) -> None:
    """T40: it keeps trying; here the server's certificate becomes valid instead."""
    context = await made(server_side, folder, starts_in=timedelta(days=2))
    one = ControlPlane(tls=context)
    async with running(one):
        node = link(tmp_path, one, certificates=await made(certificates, folder))
        async with running(node):
            await until(node, lambda status: status.state == "disconnected")
            good = await made(pki.issue, folder, "cp", sans=("127.0.0.1",), force=True)
            context.load_cert_chain(good.cert_file, good.key_file)
            await connected(node)
