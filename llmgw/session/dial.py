"""From a control plane's address to a connection: name, socket, TLS."""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future

import anyio
import anyio.abc
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSStream

from llmgw.aio import first
from llmgw.config.address import Address, masked
from llmgw.errors import TlsError, Unreachable
from llmgw.handshake import explain
from llmgw.session.address import (
    authority,
    credentials,
    lookup_name,
    path,
    plain,
    take_apart,
)
from llmgw.session.http import Connection
from llmgw.tls import Certificates

log = logging.getLogger(__name__)

# Between the addresses of one name, as RFC 8305 has it.
ADDRESS_HEAD_START = 0.25

# Some servers do not send the alert that would tell.
MUTE_TLS = "it may refuse this node's certificate, its log says why"
MUTE_PLAIN = "it may speak TLS, then write https:// and set tls"

Lookup = Callable[[str, int], Iterable[str]]


def lookup(host: str, port: int) -> tuple[str, ...]:
    """The addresses of *host* as the system finds them, best first. May take long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(_numeric(info[4]) for info in found))


def is_literal(host: str) -> bool:
    """Whether there is nothing to look up; a zone is for the system to find."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return True
    return False


def _numeric(sockaddr: tuple[object, ...]) -> str:
    # The zone of a link-local address is a number of its own in here.
    host = str(sockaddr[0])
    scope = sockaddr[3] if len(sockaddr) == 4 else 0
    return f"{host}%{scope}" if scope and "%" not in host else host


class Resolver:
    """Asks the system for addresses without being held up by it.

    The call cannot be cancelled and a dead name server holds it for half a minute, so
    it runs in a daemon thread that the agent's exit does not wait for: not in a pool,
    where a few dead names would stand in the way of everything else. One name is asked
    once at a time; an answer is given to those who wait for it and then forgotten.
    """

    def __init__(self, lookup: Lookup = lookup) -> None:
        self._lookup = lookup
        self._asked: dict[tuple[str, int], Future[tuple[str, ...]]] = {}

    async def addresses(self, host: str, port: int) -> tuple[str, ...]:
        """Unreachable if there are none."""
        if is_literal(host):
            return (host,)
        key = (host, port)
        asked = self._asked.get(key)
        if asked is None or asked.done():
            asked = self._asked[key] = Future()
            threading.Thread(
                target=self._run, args=(asked, host, port), daemon=True, name="resolve"
            ).start()
        answer = asyncio.wrap_future(asked)
        answer.add_done_callback(_passed_over)
        # Not awaited: who gives up waiting must not cancel it for the others.
        await asyncio.wait((answer,))
        try:
            return answer.result()
        except OSError as error:
            raise Unreachable(
                f"the name {host} cannot be resolved: {error.strerror or error}"
            ) from error

    def _run(self, asked: "Future[tuple[str, ...]]", host: str, port: int) -> None:
        try:
            found = tuple(self._lookup(host, port))
        except UnicodeError as error:  # a label over 63 letters, say
            asked.set_exception(OSError(0, str(error)))
        except OSError as error:
            asked.set_exception(error)
        else:
            asked.set_result(found)


def _passed_over(answer: "asyncio.Future[tuple[str, ...]]") -> None:
    """That there are none is no news for a log once nobody waits any more."""
    if not answer.cancelled():
        answer.exception()


class Dialer:
    """Opens connections to control planes, each name resolved anew each time."""

    def __init__(
        self,
        certificates: Certificates | None,
        *,
        limit: float,
        user_timeout: float,
        resolver: Resolver | None = None,
    ) -> None:
        self._certificates = certificates
        self.limit = limit
        self._user_timeout = user_timeout
        self._resolver = resolver or Resolver()

    async def dial(self, server: str) -> Connection:
        """Unreachable, with the reason, if there is none within the limit."""
        address = take_apart(server)
        where = masked(server)
        doing = ["finding its address"]
        try:
            with anyio.fail_after(self.limit):
                stream = await self._connect(address, doing)
                try:
                    local, peer = self._ends(stream, where)
                    doing.append("the TLS handshake")
                    secured = await self._secure(stream, address)
                except BaseException:
                    await anyio.aclose_forcefully(stream)
                    raise
        except TimeoutError as error:
            raise Unreachable(
                f"no answer in {self.limit:g} s ({doing[-1]})", where=where
            ) from error
        return Connection(
            secured,
            where=where,
            authority=authority(address),
            credentials=credentials(address),
            path=path(address),
            local=local,
            peer=peer,
            explain=functools.partial(self._explain, where),
            mute=MUTE_TLS if address.secure else MUTE_PLAIN,
        )

    async def _connect(
        self, address: Address, doing: list[str]
    ) -> anyio.abc.SocketStream:
        try:
            found = await self._resolver.addresses(lookup_name(address), address.port)
        except Unreachable as error:
            raise Unreachable(error.what, where=masked(address.text)) from error
        doing.append(f"connecting to {', '.join(plain(host) for host in found)}")
        reasons: list[str] = []

        async def connect(host: str) -> anyio.abc.SocketStream:
            try:
                return await anyio.connect_tcp(host, address.port)
            except OSError as error:
                reasons.append(_reason(error))
                raise

        def contenders() -> Iterator[Callable[[], Awaitable[anyio.abc.SocketStream]]]:
            for host in found:
                yield functools.partial(connect, host)

        stream = await first(
            contenders(),
            ADDRESS_HEAD_START,
            losing=OSError,
            discard=anyio.aclose_forcefully,
        )
        if stream is None:
            raise Unreachable(
                "; ".join(dict.fromkeys(reasons)), where=masked(address.text)
            )
        return stream

    def _ends(
        self, stream: anyio.abc.SocketStream, server: str
    ) -> tuple[str, tuple[object, ...]]:
        """The own address and the other's."""
        raw = _socket(stream)
        try:
            self._watch_for_silence(raw)
            return str(raw.getsockname()[0]), raw.getpeername()
        except OSError as error:  # reset since
            raise Unreachable("closed the connection", where=server) from error

    def _watch_for_silence(self, raw: socket.socket) -> None:
        """Let the kernel notice a peer that is gone, sent to or not."""
        seconds = max(round(self._user_timeout), 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(seconds // 3, 1))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        timeout = round(self._user_timeout * 1000)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)

    async def _secure(
        self, stream: anyio.abc.SocketStream, address: Address
    ) -> anyio.abc.ByteStream:
        if not address.secure:
            return stream
        if self._certificates is None:
            raise Unreachable(
                "is https:// and tls is not configured", where=masked(address.text)
            )
        try:
            context = await self._certificates.fresh()
            return await TLSStream.wrap(
                stream,
                hostname=self._certificates.server_name or address.host,
                ssl_context=context,
                standard_compatible=False,
            )
        except TlsError as error:
            raise Unreachable(error.what, where=error.where, fix=error.fix) from error
        except (
            ssl.SSLZeroReturnError,  # an end that is told; Python 3.11.2 for any end
            anyio.EndOfStream,
            anyio.BrokenResourceError,
        ) as error:
            raise self._hung_up(address) from error
        except ssl.SSLError as error:
            raise self._explain(masked(address.text), error) from error
        except OSError as error:
            raise self._hung_up(address) from error

    def _hung_up(self, address: Address) -> Unreachable:
        what = f"closed the connection during the TLS handshake: {MUTE_TLS}"
        return Unreachable(what, where=masked(address.text))

    def _explain(self, server: str, error: ssl.SSLError) -> Unreachable:
        what, fix = explain(error)
        return Unreachable(what, where=server, fix=fix)


def _reason(error: OSError) -> str:
    # Both libraries below word it anew, with the address in it; the number is the
    # system's own.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return os.strerror(cause.errno).lower() if cause.errno else str(cause)


def _socket(stream: anyio.abc.SocketStream) -> socket.socket:
    return stream.extra(SocketAttribute.raw_socket)  # noqa: S610 -- no Django here
