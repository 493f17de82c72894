"""Requests to one server, over a connection that is dialled when it is needed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from llmgw.session.dial import Dialer
from llmgw.session.http import Connection


class Channel:
    """One after another: whoever uses it sees to that."""

    def __init__(
        self, dialer: Dialer, server: str, connection: Connection | None = None
    ) -> None:
        self._dialer = dialer
        self._server = server
        self._connection = connection

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """The last one if it can carry one more request, or a new one; closed if the
        block raises, or is cancelled: what comes late over it is heard by nobody.
        """
        try:
            if self._connection is not None and not self._connection.idle:
                await self.aclose()
            if self._connection is None:
                self._connection = await self._dialer.dial(self._server)
            yield self._connection
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    async def aclose(self) -> None:
        closing, self._connection = self._connection, None
        if closing is not None:
            await closing.aclose()
