"""A server of files that misbehaves on request, and counts what it sent.

    with WeightsServer() as server:
        server.put("/model.gguf", content)
        server.spoil("/model.gguf", Reset(at=1000), times=2)

Each fault applies to as many answers as `times` says, in the order they come; then
the server is well again. What every request asked and was sent is in `requests`.
"""

import base64
import contextlib
import dataclasses
import hashlib
import http.server
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self


@dataclasses.dataclass(frozen=True)
class Reset:
    """A TCP reset after so many bytes of the body."""

    at: int


@dataclasses.dataclass(frozen=True)
class Cut:
    """The connection is closed in good order after so many bytes of the body."""

    at: int


@dataclasses.dataclass(frozen=True)
class Hang:
    """Nothing more after so many bytes, with the connection left open."""

    at: int


@dataclasses.dataclass(frozen=True)
class Crawl:
    """So many bytes a second and no more, on and on."""

    rate: float


@dataclasses.dataclass(frozen=True)
class Flip:
    """One bit of the byte at this offset of the file is wrong, if it is sent."""

    offset: int


@dataclasses.dataclass(frozen=True)
class WrongRange:
    """Another range is sent than was asked for."""

    by: int = 1


@dataclasses.dataclass(frozen=True)
class Status:
    """This status, and Retry-After if given."""

    code: int
    retry_after: str | None = None


@dataclasses.dataclass(frozen=True)
class Redirect:
    """To this address."""

    to: str


@dataclasses.dataclass(frozen=True)
class Raw:
    """These bytes for an answer, head and all, and the connection is closed."""

    answer: bytes


Fault = Raw | Reset | Cut | Hang | Crawl | Flip | WrongRange | Status | Redirect


@dataclasses.dataclass
class File:
    """One file, and how the server is about it, for as long as it is so."""

    content: bytes
    etag: str | None
    ranges: bool = True
    chunked: bool = False
    unframed: bool = False
    says_sha256: str | None = None
    digests: bool = False
    encoding: str | None = None
    rate: float | None = None
    # How many requests a signature in the query is honoured for.
    good_for: int | None = None
    before_answer: Callable[["Request"], None] | None = None
    faults: list[tuple[Fault, int | None]] = dataclasses.field(
        default_factory=list[tuple[Fault, int | None]]
    )


@dataclasses.dataclass
class Request:
    """One request and what became of it."""

    path: str
    query: str
    headers: dict[str, str]
    start: int
    end: int
    sent: int = 0
    status: int = 0


class WeightsServer:
    """Serves on loopback from `with` to its end. *delay* is added to every answer."""

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        delay: float = 0.0,
        host: str = "127.0.0.1",
    ) -> None:
        self.files: dict[str, File] = {}
        self.requests: list[Request] = []
        self.delay = delay
        self.gone = threading.Event()
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of_weights = owner

        self._server = _Server((host, 0), Handler)
        self._scheme = "http"
        if context is not None:
            self._scheme = "https"
            self._server.context = context
        self.host = host
        self.port = self._server.server_address[1]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.gone.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def url(self, path: str) -> str:
        return f"{self._scheme}://{self.host}:{self.port}{path}"

    def put(self, path: str, content: bytes) -> File:
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        file = self.files[path] = File(content=content, etag=etag)
        return file

    def spoil(self, path: str, fault: Fault, *, times: int | None = 1) -> None:
        """Have the next *times* answers for *path* go wrong; None: all of them."""
        with self._lock:
            self.files[path].faults.append((fault, times))

    def sent(self, path: str | None = None) -> int:
        """Bytes of bodies sent so far."""
        with self._lock:
            return sum(r.sent for r in self.requests if path in (None, r.path))

    def hang_up(self) -> None:
        """End every connection: from here on none of them adds to what was sent."""
        self._server.hang_up()
        end = time.monotonic() + 10
        while self._server.is_busy:
            assert time.monotonic() < end, "an answer goes on"
            time.sleep(0.005)  # noqa: TID251 -- a plain test, between two looks

    def asked(self, path: str) -> list[Request]:
        with self._lock:
            return [r for r in self.requests if r.path == path]

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def has_run_out(self, file: File, request: Request) -> bool:
        """Whether the signature in the address was used up."""
        if file.good_for is None:
            return False
        with self._lock:
            uses = sum(
                (r.path, r.query) == (request.path, request.query)
                for r in self.requests
            )
        return uses > file.good_for

    def next_fault(self, file: File, request: Request) -> Fault | None:
        with self._lock:
            for number, (fault, times) in enumerate(file.faults):
                if not _applies(fault, request):
                    continue
                if times is not None:
                    left = times - 1
                    if left:
                        file.faults[number] = (fault, left)
                    else:
                        del file.faults[number]
                return fault
        return None


def _applies(fault: Fault, request: Request) -> bool:
    length = request.end - request.start
    match fault:
        case Flip(offset=offset):
            return request.start <= offset < request.end
        case Reset(at=at) | Cut(at=at) | Hang(at=at):
            # Not on the one byte that is asked for to see what is there.
            return length > max(at, 1)
        case WrongRange() | Crawl():
            return length > 1
        case Status() | Redirect() | Raw():
            return True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    context: ssl.SSLContext | None = None

    def __init__(self, *arguments: object) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)  # pyright: ignore[reportArgumentType]

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self.context is not None:
            # The handshake is the thread's: one slow client must not hold up the rest.
            connection = self.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients hang up in the middle: that is what they are tested for

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def hang_up(self) -> None:
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_weights: WeightsServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        weights = self.server_of_weights
        path, _, query = self.path.partition("?")
        if path.startswith("http://"):  # as a proxy is asked
            path = "/" + path.split("/", 3)[3]
        file = weights.files.get(path)
        if weights.delay:
            weights.gone.wait(weights.delay)
        if file is None:
            request = Request(path, query, dict(self.headers.items()), 0, 0, status=404)
            weights.note(request)
            self._plain(404)
            return
        start, end, ranged = self._range(file)
        request = Request(path, query, dict(self.headers.items()), start, end)
        weights.note(request)
        if file.before_answer is not None:
            file.before_answer(request)
        if weights.has_run_out(file, request):
            self._plain(403)
            return
        self._answer(file, request, ranged, weights.next_fault(file, request))

    def _range(self, file: File) -> tuple[int, int, bool]:
        size = len(file.content)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        if not found or not file.ranges or condition not in (None, file.etag):
            return 0, size, False
        end = int(found[2]) + 1 if found[2] else size
        return int(found[1]), min(end, size), True

    def _answer(
        self, file: File, request: Request, ranged: bool, fault: Fault | None
    ) -> None:
        match fault:
            case Raw(answer=answer):
                self.close_connection = True
                self.wfile.write(answer)
                return
            case Status(code=code, retry_after=after):
                request.status = code
                self._plain(code, {"Retry-After": after} if after else {})
                return
            case Redirect(to=to):
                request.status = 302
                self._plain(302, {"Location": to})
                return
            case WrongRange(by=by):
                request.start, request.end = request.start + by, request.end + by
            case _:
                pass
        content = file.content[request.start : request.end]
        if isinstance(fault, Flip):
            at = fault.offset - request.start
            content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        request.status = 206 if ranged else 200
        if ranged and request.start >= len(file.content):
            request.status = 416
        self._head(file, request, file.content[request.start : request.end])
        with contextlib.suppress(OSError):
            self._body(file, request, content, fault)

    def _head(self, file: File, request: Request, right: bytes) -> None:
        self.send_response(request.status)
        size = len(file.content)
        if request.status == 206:
            last = request.end - 1
            self.send_header("Content-Range", f"bytes {request.start}-{last}/{size}")
        if request.status == 416:
            self.send_header("Content-Range", f"bytes */{size}")
        if file.encoding:
            self.send_header("Content-Encoding", file.encoding)
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.digests and request.status == 206:
            digest = base64.b64encode(hashlib.sha256(right).digest()).decode()
            self.send_header("Content-Digest", f"sha-256=:{digest}:")
        if file.says_sha256:
            self.send_header("X-Linked-ETag", f'"{file.says_sha256}"')
        if file.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif file.unframed:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(request.end - request.start))
        self.end_headers()

    def _body(
        self, file: File, request: Request, content: bytes, fault: Fault | None
    ) -> None:
        stop = fault.at if isinstance(fault, Reset | Cut | Hang) else None
        rate = fault.rate if isinstance(fault, Crawl) else file.rate
        for chunk in _chunks(content[:stop], rate):
            if file.chunked:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            else:
                self.wfile.write(chunk)
            request.sent += len(chunk)
            if rate:
                self.server_of_weights.gone.wait(len(chunk) / rate)
        if fault is not None and stop is not None:
            self._break(fault)
        elif file.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _break(self, fault: Fault) -> None:
        self.close_connection = True
        if isinstance(fault, Hang):
            self.server_of_weights.gone.wait()
        if isinstance(fault, Reset):
            hard = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            self.connection.close()

    def _plain(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _chunks(content: bytes, rate: float | None) -> Iterator[bytes]:
    # A slow server sends little at a time, so that its rate is even.
    step = max(1, int(rate / 50)) if rate else 1024 * 1024
    for start in range(0, len(content), step):
        yield content[start : start + step]
