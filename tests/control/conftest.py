"""The reference control plane, served for a test."""

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import httpx
import pytest

from llmgw.control.server import serve
from llmgw.control.settings import Settings
from tests.control.asking import Asking

Serving = Callable[..., AbstractAsyncContextManager[Asking]]


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    """`async with serving(role=…) as plane`; two of one test have two directories."""
    count = 0

    @asynccontextmanager
    async def one(
        verify: ssl.SSLContext | bool = True, **more: object
    ) -> AsyncGenerator[Asking]:
        nonlocal count
        count += 1
        chosen = {
            "listen": "127.0.0.1:0",
            "state_dir": tmp_path / f"cp{count}",
            "heartbeat_s": 1.0,
            **more,
        }
        settings = Settings(**chosen)  # pyright: ignore[reportArgumentType] -- a test's choice
        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()

            async def run(*, task_status: anyio.abc.TaskStatus[str]) -> None:
                with scope:
                    await serve(settings, task_status=task_status)

            url = await group.start(run)
            token = settings.token_file.read_text(errors="replace").strip()
            async with httpx.AsyncClient(
                base_url=url, verify=verify, trust_env=False
            ) as client:
                yield Asking(client, url, token, scope.cancel)
            scope.cancel()

    return one
