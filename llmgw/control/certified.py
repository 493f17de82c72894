"""The control plane's own certificate: the newest of its files, at each handshake.

A port cannot be given another context while it is open. A handshake can: the first one
has it replaced by that of the newest files, their CA with it.
"""

import logging
import ssl

import anyio
import anyio.to_thread

from llmgw.config.keys import Tls
from llmgw.control.http_log import Seldom
from llmgw.handshake import Called, explain
from llmgw.tls import Certificates, read_server

log = logging.getLogger(__name__)

# A handshake must not wait for a disk, so the files are looked at beside them.
LOOK = 1.0


class Served:
    """Mutual TLS with the files of *settings*, or none."""

    def __init__(self, settings: Tls) -> None:
        self._seldom = Seldom()
        self._certificates: Certificates | None = None
        if settings.enabled:
            self._certificates = Certificates(settings, None, load=read_server)

    def context(self) -> ssl.SSLContext | None:
        """For a port that opens. Reads files; TlsError says what is off with them."""
        if self._certificates is None:
            return None
        context = self._certificates.context()
        context.sni_callback = self._replace
        context.sslobject_class = _telling(self._seldom)
        return context

    def _replace(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        # Called at every handshake, also at one that names nobody.
        assert self._certificates, "there is no handshake without"
        connection.context = self._certificates.newest

    async def watch(self) -> None:
        while self._certificates is not None:
            await anyio.sleep(LOOK)
            await anyio.to_thread.run_sync(self._certificates.refresh)


def _telling(seldom: Seldom) -> type[ssl.SSLObject]:
    """One end of a connection, which tells why a handshake failed.

    asyncio drops it without a word: an agent with the wrong certificate said "see its
    log" of this one, and nothing was there.
    """

    class Telling(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise  # the rest has yet to come
            except ssl.SSLError as error:
                if (unsaid := seldom.unsaid()) is not None:
                    what, _ = explain(error, Called(ca="--tls-ca"))
                    log.warning("handshake failed error=%r unsaid=%d", what, unsaid)
                raise

    return Telling
