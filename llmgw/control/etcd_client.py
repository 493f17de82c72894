"""Requests to etcd, shown the newest certificate: a rotated one needs no restart.

A control plane whose certificate had ended kept its lead on the connection it had, and
lost it for good with that connection. So the client is made anew when the files change;
the one before is closed once nothing waits for an answer on it.
"""

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread
import httpx

from llmgw.config import keys
from llmgw.control.certified import LOOK
from llmgw.tls import Certificates

# For the close of connections that may be dead.
GOODBYE = 1.0


class _Lent:
    """A client, and how many requests are under way on it."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.uses = 0
        # Past any proxy.
        self.client = httpx.AsyncClient(
            verify=True if context is None else context, trust_env=False
        )


class Client:
    """Entered, it reads the files: TlsError says why they cannot be used."""

    def __init__(self, settings: keys.Tls) -> None:
        self._certificates: Certificates | None = None
        if settings.enabled:
            self._certificates = Certificates(settings, None)
        self._lent: _Lent | None = None
        self._old: list[_Lent] = []

    async def __aenter__(self) -> Self:
        self._lent = await anyio.to_thread.run_sync(self._first)
        return self

    def _first(self) -> _Lent:
        certificates = self._certificates
        return _Lent(certificates.context() if certificates else None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lent, "entered"
        for lent in (*self._old, self._lent):
            await _closed(lent)

    async def post(
        self, url: str, body: Mapping[str, Any], limit: float
    ) -> httpx.Response:
        """*limit*: seconds for each step of it, as connecting or the handshake."""
        assert self._lent, "entered"
        lent = self._lent
        lent.uses += 1
        try:
            return await lent.client.post(url, json=body, timeout=limit)
        finally:
            lent.uses -= 1

    async def watch(self) -> None:
        """Look at the files beside the requests: a lease must not wait for a disk."""
        while self._certificates is not None:
            await anyio.sleep(LOOK)
            await anyio.to_thread.run_sync(self._certificates.refresh)
            await self._renew(self._certificates.newest)

    async def _renew(self, context: ssl.SSLContext) -> None:
        assert self._lent, "entered"
        if self._lent.context is not context:
            self._old.append(self._lent)
            self._lent = _Lent(context)
        for lent in [one for one in self._old if not one.uses]:
            self._old.remove(lent)
            await _closed(lent)


async def _closed(lent: _Lent) -> None:
    with anyio.move_on_after(GOODBYE, shield=True):
        await lent.client.aclose()
