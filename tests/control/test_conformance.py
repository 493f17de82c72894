"""`llmgw conformance` passes the reference control plane, and sees what is broken."""

import ssl
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest

from llmgw.config.keys import Tls
from llmgw.conformance.played import Conformance, Options, Verdict
from llmgw.errors import LlmgwError
from tests.control.conftest import Serving
from tests.fakes.certified import (
    authority,
    certificates,
    control_plane,
    server_side,
)
from tests.fakes.control_plane import ControlPlane

OPTIONS = Options(node_id="n1", longest_lease=1)


async def judged(client: httpx.AsyncClient, options: Options) -> list[Verdict]:
    verdicts: list[Verdict] = []
    await Conformance(client, options).run(verdicts.append)
    return verdicts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return authority(tmp_path / "pki")


@pytest.fixture
def context(folder: Path) -> ssl.SSLContext:
    return certificates(folder, "n1").context()


@pytest.fixture
def own(folder: Path) -> Tls:
    return control_plane(folder)


async def test_the_reference_keeps_every_rule(
    serving: Serving, own: Tls, context: ssl.SSLContext
) -> None:
    """Over TLS, so that names are proven."""
    async with serving(tls=own, verify=context) as plane:
        await plane.want("n1", {"id": "a", "engine": "command"})
        options = Options(node_id="n1", has_tls=True, step_down=True)
        verdicts = await judged(plane.client, options)

    assert [one for one in verdicts if one.outcome != "pass"] == []


class Lying(httpx.AsyncBaseTransport):
    """A control plane that answers as the reference does, but for one thing."""

    def __init__(self, path: str, status: int, lie: Callable[[bytes], bytes]) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._path, self._status, self._lie = path, status, lie

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        if request.url.path != self._path or answer.status_code != self._status:
            return answer
        body = await answer.aread()
        await answer.aclose()
        lie = self._lie(body)
        return httpx.Response(200 if lie == ACK else self._status, content=lie)

    async def aclose(self) -> None:
        await self._inner.aclose()


ACK = b'{"epoch":1,"rev":0}'


def said(**more: object) -> Callable[[bytes], bytes]:
    return lambda body: msgspec.json.encode(msgspec.json.decode(body) | more)


def always(body: bytes) -> Callable[[bytes], bytes]:
    return lambda _: body


@pytest.mark.parametrize(
    ("path", "status", "lie", "rules"),
    [
        ("/v1/leader", 200, said(leader=False), {"leader"}),
        ("/v1/register", 200, said(lease_s=2), {"register"}),
        ("/v1/register", 426, said(accepts=[]), {"refusals"}),
        ("/v1/register", 409, said(code="sorry"), {"refusals"}),
        # Whoever is gone is answered as if it were there.
        (
            "/v1/heartbeat",
            404,
            always(ACK),
            {"goodbye", "refusals", "3.5"},
        ),
        ("/v1/heartbeat", 200, said(epoch=99), {"3.4"}),
        ("/v1/probe", 200, always(b"yes"), {"probe"}),
    ],
    ids=lambda value: str(value) if isinstance(value, str | int) else "",
)
async def test_what_is_broken_is_named(
    serving: Serving,
    path: str,
    status: int,
    lie: Callable[[bytes], bytes],
    rules: set[str],
) -> None:
    async with (
        serving() as plane,
        httpx.AsyncClient(
            transport=Lying(path, status, lie), base_url=plane.url
        ) as client,
    ):
        await plane.want("n1")
        verdicts = await judged(client, OPTIONS)

    assert {one.rule for one in verdicts if one.outcome == "fail"} == rules


@pytest.fixture
def refusing(folder: Path, tmp_path: Path) -> ssl.SSLContext:
    """Of a control plane that trusts another authority."""
    return server_side(folder, trusts=authority(tmp_path / "other"))


async def test_a_certificate_that_it_refuses_is_told(
    refusing: ssl.SSLContext, context: ssl.SSLContext
) -> None:
    """TLS 1.3 tells it after the handshake, when the answer is awaited."""
    async with (
        httpx.AsyncClient(verify=context, trust_env=False) as client,
        anyio.create_task_group() as group,
    ):
        one = ControlPlane(tls=refusing)
        await group.start(one.run)
        client.base_url = one.url
        with pytest.raises(LlmgwError, match="refuses this node's certificate"):
            await judged(client, OPTIONS)
        group.cancel_scope.cancel()


async def test_a_standby_is_not_judged(serving: Serving) -> None:
    async with serving(role="standby", leader_url="http://cp2:7443") as plane:
        with pytest.raises(LlmgwError, match="is a standby") as caught:
            await judged(plane.client, OPTIONS)

    assert "http://cp2:7443" in caught.value.fix
