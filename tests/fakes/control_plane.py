"""A control plane that does as it is told: delays, truncates, lies, hangs, floods.

What it does untold is right, and held to the same contracts as the real one.
"""

import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import h11
import msgspec
from anyio.abc import SocketAttribute, TaskStatus
from anyio.streams.tls import TLSStream
from msgspec import Struct

from llmgw.aio import Latest

GONE = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)
KINDS = (
    "register",
    "desired",
    "heartbeat",
    "facts",
    "events",
    "answers",
    "goodbye",
    "probe",
    "leader",
)


class Request(Struct, frozen=True):
    kind: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Exchange:
    """A request, and the raw connection on which to answer it, rightly or not."""

    def __init__(self, request: Request, stream: anyio.abc.ByteStream) -> None:
        self.request = request
        self.stream = stream

    async def answer(
        self,
        body: object = None,
        status: int = 200,
        kind: str = "application/json",
        **headers: str,
    ) -> None:
        await self.stream.send(response(body, status, kind, **headers))

    async def refuse(self, status: int, code: str, **more: object) -> None:
        await self.answer({"code": code, "detail": f"told to {code}", **more}, status)

    def reset(self) -> None:
        """Not closed: torn off, as by a firewall or a crash."""
        raw: socket.socket = self.stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Closed


class Closed(Exception):
    """The handler is done with this connection."""


Handler = Callable[[Exchange], Awaitable[None]]


def response(
    body: object = None,
    status: int = 200,
    kind: str = "application/json",
    **headers: str,
) -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    if status != 204:
        head += [f"content-type: {kind}", f"content-length: {len(content)}"]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + content


class ControlPlane:
    """Listens on loopback from `run`'s start to its cancellation, which is its death.

    *on* has a handler for a kind of request where it is to do otherwise than it should;
    *standby* refuses everybody. *snapshot* is what a new stream begins with.
    """

    def __init__(
        self,
        *,
        epoch: int = 1,
        heartbeat_s: float | None = None,
        lease_s: float = 15.0,
        standby: bool = False,
        leader: str | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        sock: socket.socket | None = None,
    ) -> None:
        self.epoch = epoch
        self.rev = 1
        self.heartbeat_s = heartbeat_s
        self.lease_s = lease_s
        self.standby = standby
        self.leader = leader
        self.servers: list[str] | None = None
        self.max_line: int | None = None
        self.replicas: list[dict[str, Any]] = []
        self.want: list[str] = []
        self.on: dict[str, Handler] = {}
        self.requests: list[Request] = []
        self.connections = 0
        self.open = Latest(0)
        self.streams: dict[anyio.abc.ByteStream, anyio.Lock] = {}
        self.sessions: list[str] = []
        self._present: dict[str, str] = {}  # the one session of each node
        self.ping_s = 0.1
        self.mute = False  # hangs up on a bad handshake without the alert
        self._tls = tls
        self._host = host
        self._port = port if sock is None else sock.getsockname()[1]
        self._sock = sock
        self._news = Latest(0)
        self._scope = anyio.CancelScope()

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def run(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        tcp = await self._listen()
        self._port = tcp.extra(SocketAttribute.local_port)
        self._scope = anyio.CancelScope()
        with self._scope:
            async with tcp, anyio.create_task_group() as group:
                group.start_soon(tcp.serve, self._serve, group)
                task_status.started()
                await anyio.sleep_forever()

    async def _listen(self) -> anyio.abc.Listener[anyio.abc.SocketStream]:
        if self._sock is not None:
            return await anyio.abc.SocketListener.from_socket(self._sock)
        return await anyio.create_tcp_listener(
            local_host=self._host, local_port=self._port, reuse_port=False
        )

    def forget(self) -> None:
        """All sessions, as after a restart."""
        self._present.clear()

    def die(self) -> None:
        """As by SIGKILL: the port closed and every connection ended."""
        self._scope.cancel()

    # What it was told ------------------------------------------------------------

    def heard(self, kind: str) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    async def hears(self, kind: str, times: int = 1) -> Request:
        """Wait for the so-manieth request of a kind, counted from the beginning."""
        number = -1
        while len(heard := self.heard(kind)) < times:
            number, _ = await self._news.newer_than(number)
        return heard[times - 1]

    # What it does ----------------------------------------------------------------

    async def push(self, message: dict[str, Any] | bytes) -> None:
        """A line to every open stream; bytes as they are, without a line's end."""
        raw = message
        if not isinstance(raw, bytes):
            raw = msgspec.json.encode(raw) + b"\n"
        await self.streaming()
        for stream in tuple(self.streams):
            await self._line(stream, raw)

    async def streaming(self) -> None:
        """Wait until somebody listens."""
        number = -1
        while not self.streams:
            number, _ = await self._news.newer_than(number)

    async def _line(self, stream: anyio.abc.ByteStream, raw: bytes) -> None:
        async with self.streams[stream]:
            await stream.send(b"%x\r\n%b\r\n" % (len(raw), raw))

    def snapshot(self, **other: Any) -> dict[str, Any]:
        return {
            "t": "snapshot",
            "epoch": self.epoch,
            "rev": self.rev,
            "complete": True,
            "replicas": self.replicas,
            **other,
        }

    @contextmanager
    def told(self, kind: str, handler: Handler) -> Generator[None]:
        self.on[kind] = handler
        try:
            yield
        finally:
            del self.on[kind]

    async def _serve(self, tcp: anyio.abc.SocketStream) -> None:
        self.connections += 1
        self.open.set(self.open.value + 1)
        async with tcp:
            try:
                stream = await accept(tcp, self._tls, self.mute) if self._tls else tcp
                await self._exchanges(stream)
            except h11.RemoteProtocolError:
                await tcp.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            except (*GONE, Closed):
                pass  # the agent let go, or the test did
            finally:
                self.open.set(self.open.value - 1)

    async def _exchanges(self, stream: anyio.abc.ByteStream) -> None:
        parser = h11.Connection(h11.SERVER)
        while (request := await _read(parser, stream)) is not None:
            self.requests.append(request)
            self._news.set(self._news.number)
            handler = self.on.get(request.kind) or getattr(self, f"_{request.kind}")
            try:
                await handler(Exchange(request, stream))
            finally:
                self.streams.pop(stream, None)
            # The answer went around the parser, and is told to it here.
            parser.send(h11.Response(status_code=204, headers=[]))
            parser.send(h11.EndOfMessage())
            parser.start_next_cycle()

    async def _register(self, exchange: Exchange) -> None:
        if self.standby:
            return await exchange.refuse(421, "not_leader", leader=self.leader)
        seen = exchange.request.json()["epoch_seen"]
        if seen > self.epoch:
            return await exchange.refuse(409, "stale_epoch")
        self.sessions.append(f"s{self.port}-{len(self.sessions)}")
        self._present[exchange.request.json()["node_id"]] = self.sessions[-1]
        answer = {
            "session": self.sessions[-1],
            "epoch": self.epoch,
            "lease_s": self.lease_s,
            "heartbeat_s": self.heartbeat_s,
            "servers": self.servers,
            "max_line": self.max_line,
        }
        return await exchange.answer(answer)

    async def _desired(self, exchange: Exchange) -> None:
        if not await self._knows(exchange):
            return
        await exchange.stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        stream = exchange.stream
        self.streams[stream] = anyio.Lock()
        await self._line(stream, msgspec.json.encode(self.snapshot()) + b"\n")
        self._news.set(self._news.number)
        async with anyio.create_task_group() as group:
            group.start_soon(self._ping, stream)
            # The node says nothing more here: a byte would be its end, and so is none.
            with suppress(*GONE):
                await stream.receive()
            group.cancel_scope.cancel()
        raise Closed

    async def _ping(self, stream: anyio.abc.ByteStream) -> None:
        while True:
            await anyio.sleep(self.heartbeat_s or self.ping_s)
            with suppress(*GONE):
                await self._line(stream, b'{"t":"ping"}\n')

    async def _heartbeat(self, exchange: Exchange) -> None:
        if await self._knows(exchange):
            ack = {"epoch": self.epoch, "rev": self.rev, "want": self.want}
            await exchange.answer(ack)

    async def _facts(self, exchange: Exchange) -> None:
        await exchange.answer(status=204)

    _events = _answers = _goodbye = _facts

    async def _probe(self, exchange: Exchange) -> None:
        asked = exchange.request.json()
        try:
            stream = await anyio.connect_tcp(asked["address"], asked["port"])
        except OSError as error:
            await exchange.answer({"reachable": False, "reason": str(error)})
        else:
            await stream.aclose()
            await exchange.answer({"reachable": True})

    async def _leader(self, exchange: Exchange) -> None:
        await exchange.answer({"leader": not self.standby, "epoch": self.epoch})

    async def _knows(self, exchange: Exchange) -> bool:
        if self.standby:
            await exchange.refuse(421, "not_leader", leader=self.leader)
            return False
        request = exchange.request
        session = request.query.get("session") or request.json()["session"]
        if session in self._present.values():
            return True
        await exchange.refuse(404, "unknown_session")
        return False

    def count(self) -> Counter[str]:
        return Counter(request.kind for request in self.requests)


async def accept(
    tcp: anyio.abc.SocketStream, context: ssl.SSLContext, mute: bool
) -> anyio.abc.ByteStream:
    """The server's end of a handshake, which tells the other side what was wrong.

    anyio's own does not; nor does asyncio's: that is *mute*.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await tcp.send(outgoing.read())
            incoming.write(await tcp.receive())
        except ssl.SSLError as error:
            if not mute:
                await tcp.send(outgoing.read())
            raise Closed from error
        else:
            if outgoing.pending:
                await tcp.send(outgoing.read())
            return TLSStream(tcp, False, tls, incoming, outgoing)


async def _read(parser: h11.Connection, stream: anyio.abc.ByteStream) -> Request | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(await stream.receive())
            except anyio.EndOfStream:
                return None
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _request(head, bytes(body))
        else:
            return None


def _request(head: h11.Request, body: bytes) -> Request:
    parts = urlsplit(head.target.decode())
    return Request(
        kind=parts.path.split("/")[2],
        method=head.method.decode(),
        path=parts.path,
        query={name: values[-1] for name, values in parse_qs(parts.query).items()},
        headers={name.decode(): value.decode() for name, value in head.headers},
        body=body,
    )


# Handlers ---------------------------------------------------------------------------


async def hang(exchange: Exchange) -> None:
    """Not a word, and the connection stays open."""
    await anyio.sleep_forever()


async def close(exchange: Exchange) -> None:
    raise Closed


async def reset(exchange: Exchange) -> None:
    exchange.reset()


def refuse(status: int, code: str, **more: object) -> Handler:
    async def handler(exchange: Exchange) -> None:
        await exchange.refuse(status, code, **more)

    return handler


def raw(data: bytes, then: Handler = close) -> Handler:
    """These bytes, whatever they are, and *then*."""

    async def handler(exchange: Exchange) -> None:
        await exchange.stream.send(data)
        await then(exchange)

    return handler


def drip(data: bytes, every: float) -> Handler:
    """A byte at a time."""

    async def handler(exchange: Exchange) -> None:
        for byte in data:
            await exchange.stream.send(bytes([byte]))
            await anyio.sleep(every)
        await anyio.sleep_forever()

    return handler
