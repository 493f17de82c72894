"""What is told beside the heartbeats, over a connection that none of them waits for."""

import logging

import anyio

from llmgw.errors import Refused, SessionError
from llmgw.session import rules
from llmgw.session.channel import Channel
from llmgw.session.dial import Dialer
from llmgw.session.http import JSON, within

log = logging.getLogger(__name__)

# Longer than any of it should take; nothing waits for it.
LIMIT = 30.0
# Refusals after which there is no session to ask for anything more.
ENDING = frozenset({"unknown_session", "not_leader", *rules.TOLD})


class Aside:
    """Facts, events and answers of one session: best effort, one after another."""

    def __init__(self, dialer: Dialer, server: str, where: str) -> None:
        self._where = where
        self._lock = anyio.Lock()
        self._channel = Channel(dialer, server)

    async def tell(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (("content-type", JSON),),
    ) -> bool:
        """Whether it went through. Refused if there is no session any more."""
        async with self._lock:
            try:
                with within(LIMIT, target.partition("?")[0], self._where):
                    async with self._channel.connection() as connection:
                        await connection.request(method, target, body, headers)
            except SessionError as error:
                if isinstance(error, Refused) and error.code in ENDING:
                    raise
                log.info("not delivered target=%s %s", target.partition("?")[0], error)
                return False
        return True

    async def aclose(self) -> None:
        await self._channel.aclose()
