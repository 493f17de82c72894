"""etcd's client certificate, replaced while a control plane uses it."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from aiohttp import web
from msgspec import Struct

from llmgw import pki
from llmgw.config.keys import Tls
from llmgw.control.etcd import Etcd
from llmgw.control.etcd_client import Client
from llmgw.control.settings import Etcd as EtcdSettings
from llmgw.errors import LlmgwError, TlsError
from llmgw.tls import read_server
from tests.control.asking import Asking
from tests.control.conftest import Serving
from tests.fakes.certified import authority, control_plane, server_side
from tests.fakes.control_plane import ControlPlane
from tests.fakes.ports import free_port

NAMES = ("cert_file", "key_file", "ca_file")


def copied(source: Tls, target: Tls, *names: str) -> None:
    for name in names or NAMES:
        shutil.copy(getattr(source, name), getattr(target, name))


def named(folder: Path, name: str) -> Tls:
    """Files of the authority in *folder*; it is told at the other end by its name."""
    made = pki.issue(folder, name, force=True)
    return Tls(
        cert_file=str(made.cert_file),
        key_file=str(made.key_file),
        ca_file=str(made.ca_file),
    )


class Files(Struct):
    """*mine* are read, and replaced by a test. *other*: of an authority of its own."""

    mine: Tls
    server: Tls
    second: Tls
    third: Tls
    other: Tls
    other_server: Tls


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = authority(tmp_path / "pki")
    other = authority(tmp_path / "other")
    (tmp_path / "mine").mkdir()
    mine = Tls(**{name: str(tmp_path / "mine" / name) for name in NAMES})
    copied(named(folder, "first"), mine)
    return Files(
        mine=mine,
        server=control_plane(folder),
        second=named(folder, "second"),
        third=named(folder, "third"),
        other=named(other, "second"),
        other_server=control_plane(other),
    )


async def replaced(files: Files, source: Tls, *names: str) -> None:
    await anyio.to_thread.run_sync(copied, source, files.mine, *names)


def server_context(tls: Tls) -> ssl.SSLContext:
    assert tls.cert_file
    assert tls.key_file
    assert tls.ca_file
    return read_server(
        Path(tls.cert_file), Path(tls.key_file), Path(tls.ca_file)
    ).context


class Gateway:
    """What of etcd's gateway a `get` needs. It tells who asked, and answers late."""

    def __init__(self) -> None:
        self.url = ""
        self.shown: list[str] = []
        self._transports: set[asyncio.Transport] = set()
        self.held: anyio.Event | None = None

    async def answer(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        self._transports.add(request.transport)
        certificate = request.transport.get_extra_info("peercert")
        ((_, name),) = certificate["subject"][-1]
        self.shown.append(name)
        held, self.held = self.held, None
        if held:
            await held.wait()
        return web.json_response({"header": {}})

    @property
    def connections(self) -> int:
        return sum(not one.is_closing() for one in self._transports)


@asynccontextmanager
async def gateway(tls: Tls) -> AsyncGenerator[Gateway]:
    one = Gateway()
    app = web.Application()
    app.add_routes([web.post("/v3/kv/range", one.answer)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    context = await anyio.to_thread.run_sync(server_context, tls)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    one.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield one
    finally:
        await runner.cleanup()


@asynccontextmanager
async def watched(tls: Tls) -> AsyncGenerator[Client]:
    async with Client(tls) as client, anyio.create_task_group() as group:
        group.start_soon(client.watch)
        yield client
        group.cancel_scope.cancel()


async def until_shown(etcd: Etcd, one: Gateway, name: str) -> None:
    with anyio.fail_after(10):
        while name not in one.shown:
            await etcd.get("x")
            await anyio.sleep(0.02)


async def test_a_rotated_certificate_is_shown_from_the_next_request_on(
    files: Files,
) -> None:
    """One that waits meanwhile gets its answer, and its client is closed after that."""
    async with gateway(files.server) as one, watched(files.mine) as client:
        etcd = Etcd(client, [one.url], 20)
        release = one.held = anyio.Event()
        answers: list[object] = []
        before: list[object] = []

        async def slow() -> None:
            answers.append(await etcd.get("x"))

        async with anyio.create_task_group() as group:
            group.start_soon(slow)
            with anyio.fail_after(10):
                while one.shown != ["first"]:
                    await anyio.sleep(0.01)
            await replaced(files, files.second)
            await until_shown(etcd, one, "second")
            # A later look, which has to leave alone what is in use.
            await replaced(files, files.third)
            await until_shown(etcd, one, "third")
            before += answers
            release.set()
        with anyio.fail_after(10):
            while one.connections > 1:
                await anyio.sleep(0.02)
        await etcd.get("x")

    assert (before, answers) == ([], [None])
    assert one.shown[-1] == "third"


async def test_a_half_written_pair_keeps_the_old_one_and_says_so_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(files.server) as one, watched(files.mine) as client:
        etcd = Etcd(client, [one.url], 20)
        await replaced(files, files.second, "cert_file")
        with anyio.fail_after(10):
            while "certificates unusable" not in caplog.text:  # that it was looked at
                await etcd.get("x")
                await anyio.sleep(0.02)
        await etcd.get("x")
        between = set(one.shown)
        await replaced(files, files.second, "key_file")
        await until_shown(etcd, one, "second")

    assert between == {"first"}
    assert caplog.text.count("certificates unusable") == 1
    assert "in_use=the old ones" in caplog.text


async def test_a_new_authority_is_trusted_without_a_restart(files: Files) -> None:
    async with gateway(files.other_server) as one, watched(files.mine) as client:
        etcd = Etcd(client, [one.url], 20)
        with pytest.raises(LlmgwError, match="certificate verify failed"):
            await etcd.get("x")
        await replaced(files, files.other)
        with anyio.fail_after(10):
            while not one.shown:
                try:
                    await etcd.get("x")
                except LlmgwError:
                    await anyio.sleep(0.05)

    assert one.shown == ["second"]


async def test_a_certificate_that_etcd_refuses_is_told_and_ends_nothing(
    files: Files, tmp_path: Path
) -> None:
    """TLS 1.3 tells it after the handshake, when the answer is awaited."""
    trusts = tmp_path / "other"
    context = await anyio.to_thread.run_sync(
        lambda: server_side(tmp_path / "pki", trusts=trusts)
    )
    refusing = ControlPlane(tls=context)
    async with Client(files.mine) as client, anyio.create_task_group() as group:
        await group.start(refusing.run)
        with pytest.raises(LlmgwError, match="refuses this node's certificate"):
            await Etcd(client, [refusing.url], 5).get("x")
        group.cancel_scope.cancel()


async def test_files_that_never_fitted_are_told_at_the_start(files: Files) -> None:
    await replaced(files, files.second, "key_file")

    with pytest.raises(TlsError, match="is not the key of"):
        async with Client(files.mine):
            pass


# The real one ------------------------------------------------------------------------

ETCD = shutil.which("etcd")


@contextmanager
def real(folder: Path, tls: Tls, port: int) -> Generator[str]:
    """A member that asks for certificates; started again, it knows what it knew."""
    assert ETCD is not None
    url = f"https://127.0.0.1:{port}"
    arguments = {
        "data-dir": str(folder / "member"),
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": f"http://127.0.0.1:{free_port()}",
        "cert-file": tls.cert_file,
        "key-file": tls.key_file,
        "trusted-ca-file": tls.ca_file,
        "client-cert-auth": "true",
    }
    with (folder / "etcd.log").open("ab") as log:
        member = subprocess.Popen(
            [ETCD, *(f"--{key}={value}" for key, value in arguments.items())],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield url
    finally:
        member.kill()
        member.wait()


async def leads(plane: Asking, within: float = 20) -> int:
    """The epoch, once it leads."""
    with anyio.fail_after(within):
        while True:
            answer = (await plane.client.get("/v1/leader")).json()
            if answer["leader"]:
                return answer["epoch"]
            await anyio.sleep(0.02)


async def leads_no_more(plane: Asking) -> None:
    with anyio.fail_after(10):
        while (await plane.client.get("/v1/leader")).json()["leader"]:
            await anyio.sleep(0.02)


@pytest.mark.skipif(ETCD is None, reason="needs etcd: apt install etcd-server")
async def test_a_leader_outlives_the_authority_that_etcd_trusted(
    serving: Serving, files: Files, tmp_path: Path
) -> None:
    """etcd comes back with another; the control plane has its files by then."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    chosen = EtcdSettings(endpoints=(url,), ttl=2, tls=files.mine)
    async with serving(role="etcd", etcd=chosen) as plane:
        with real(tmp_path, files.server, port):
            first = await leads(plane)
            async with httpx.AsyncClient(verify=False, trust_env=False) as stranger:
                # That it does ask for a certificate.
                with pytest.raises((httpx.TransportError, ssl.SSLError)):
                    await stranger.post(f"{url}/v3/kv/range", json={})
        await leads_no_more(plane)
        await replaced(files, files.other)
        with real(tmp_path, files.other_server, port):
            second = await leads(plane)

    assert second > first
