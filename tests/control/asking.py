"""An agent's and an operator's requests, by hand."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec

from llmgw.wire import (
    AgentInfo,
    Heartbeat,
    Line,
    Load,
    Register,
    Registered,
    Snapshot,
    decode_line,
)


def register(node_id: str = "n1", **more: Any) -> Register:
    said: dict[str, Any] = {
        "node_id": node_id,
        "instance": "i1",
        "machine_id_hash": "m1",
        "boot_id": "b1",
        "agent": AgentInfo(version="0"),
        "hostname": node_id,
        "mgmt_addr": "127.0.0.1",
        "mgmt_interface": "lo",
        **more,
    }
    return Register(**said)


def heartbeat(session: str, seq: int = 1, **more: Any) -> Heartbeat:
    said: dict[str, Any] = {
        "session": session,
        "seq": seq,
        "epoch": 1,
        "rev_applied": None,
        "facts_hash": "",
        "load": Load(),
        **more,
    }
    return Heartbeat(**said)


class Asking:
    """*leave* has the control plane shut down."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        token: str,
        leave: Callable[[], None],
    ) -> None:
        self.client = client
        self.url = url
        self.token = token
        self.leave = leave

    async def post(self, path: str, message: object) -> httpx.Response:
        return await self.client.post(path, content=msgspec.json.encode(message))

    async def register(self, node_id: str = "n1", **more: Any) -> Registered:
        answer = await self.post("/v1/register", register(node_id, **more))
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=Registered)

    async def beat(self, session: str, seq: int = 1, **more: Any) -> httpx.Response:
        return await self.post("/v1/heartbeat", heartbeat(session, seq, **more))

    async def admin(
        self, method: str, path: str, document: object = None, raw: str | None = None
    ) -> httpx.Response:
        """*raw*: a body that JSON has no word for."""
        return await self.client.request(
            method,
            f"/v1/admin/{path}",
            content=msgspec.json.encode(document) if raw is None else raw,
            headers={"Authorization": f"Bearer {self.token}"},
        )

    async def want(self, node_id: str, *replicas: dict[str, Any]) -> httpx.Response:
        path = f"nodes/{node_id}/replicas"
        answer = await self.admin("PUT", path, {"replicas": list(replicas)})
        assert answer.status_code == 200, answer.text
        return answer

    @asynccontextmanager
    async def stream(self, session: str) -> AsyncGenerator["Lines"]:
        path = f"/v1/desired?session={session}&have=0"
        async with self.client.stream("GET", path) as answer:
            assert answer.status_code == 200
            yield Lines(answer)


class Lines:
    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(
        self, fits: Callable[[Line], bool] = lambda _: True, within: float = 5
    ) -> Line:
        with anyio.fail_after(within):
            async for line in self._lines:
                decoded = decode_line(line.encode())
                assert decoded is not None
                if fits(decoded):
                    return decoded
        raise AssertionError("the stream ended")

    async def snapshot(self) -> Snapshot:
        line = await self.next(lambda one: isinstance(one, Snapshot))
        assert isinstance(line, Snapshot)
        return line


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]
