"""The control plane's own certificate: the newest of its files, at each handshake.

A port cannot be given another context while it is open. A handshake can: the first one
has it replaced by that of the newest files, their CA with it.
"""

import ssl

import anyio
import anyio.to_thread

from llmgw.config.keys import Tls
from llmgw.tls import Certificates, read_server

# A handshake must not wait for a disk, so the files are looked at beside them.
LOOK = 1.0


class Served:
    """Mutual TLS with the files of *settings*, or none."""

    def __init__(self, settings: Tls) -> None:
        self._certificates: Certificates | None = None
        if settings.enabled:
            self._certificates = Certificates(settings, None, load=read_server)

    def context(self) -> ssl.SSLContext | None:
        """For a port that opens. Reads files; TlsError says what is off with them."""
        if self._certificates is None:
            return None
        context = self._certificates.context()
        context.sni_callback = self._replace
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
