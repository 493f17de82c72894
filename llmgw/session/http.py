"""HTTP/1.1 over a connection that is already there.

Not a client library: those choose address and connection themselves, and the link has
to know its own address before it writes the first request, has to hold two servers
apart in one race, and may neither follow a redirect nor hear of a proxy.
"""

import math
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.abc
import h11
import msgspec
from msgspec import Struct

from llmgw.dates import http_date
from llmgw.errors import Refused, Unreachable
from llmgw.wire import UNDECODABLE, Refusal

T = TypeVar("T")


@contextmanager
def within(seconds: float, what: str, where: str) -> Generator[None]:
    """Unreachable if *what* takes longer."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise Unreachable(
            f"no answer in {seconds:g} s ({what})", where=where
        ) from error


JSON = "application/json"
# An answer is a page at most; only the stream carries more, a line at a time.
MAX_ANSWER = 1024 * 1024
# What a TLS server says to one who does not speak TLS begins so.
_TLS_ALERT = b"\x15\x03"


class Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """One connection to one server, one request after another.

    Unreachable if it breaks, is cut off or talks nonsense; Refused if the answer is no.
    *idle* says if it can carry one more: not after a fault, nor after being cancelled,
    nor if the last answer said that it closes, as those of many a proxy do, nor if its
    end was that of the connection, nor if more came than was asked for.
    """

    def __init__(
        self,
        stream: anyio.abc.ByteStream,
        *,
        where: str,
        authority: str,
        credentials: tuple[tuple[str, str], ...],
        path: str,
        local: str,
        peer: tuple[object, ...],
        explain: Callable[[ssl.SSLError], Unreachable],
        mute: str,
    ) -> None:
        self.where = where
        self.local = local
        self.peer = peer
        self.date: float | None = None  # the other side's clock, as last told
        self._stream = stream
        self._path = path
        self._headers = [
            ("host", authority),
            ("user-agent", "llmgw-agent"),
            *credentials,
        ]
        self._explain = explain
        self._mute = mute  # what it may mean if not one byte ever comes
        self._http = h11.Connection(h11.CLIENT)
        self._began = False

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)

    @property
    def idle(self) -> bool:
        more, ended = self._http.trailing_data
        return self._http.our_state is h11.IDLE and not (more or ended)

    async def ask(
        self, method: str, target: str, body: object, answer: type[T] | None
    ) -> T:
        """Send *body* as JSON; the answer decoded, if one is expected."""
        content = b"" if body is None else msgspec.json.encode(body)
        got = await self.request(method, target, content)
        if answer is None:
            return None  # pyright: ignore[reportReturnType]
        try:
            return msgspec.json.decode(got.body, type=answer)
        except UNDECODABLE as error:
            raise Unreachable(
                f"answers {target} with something else: {error}", where=self.where
            ) from error

    async def request(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: tuple[tuple[str, str], ...] = (("content-type", JSON),),
    ) -> Answer:
        """The whole answer, if it was yes."""
        status, got = await self._begin(method, target, body, headers)
        content = bytearray()
        while (part := await self._part()) is not None:
            content += part
            if len(content) > MAX_ANSWER:
                raise Unreachable(f"answers {target} without end", where=self.where)
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        answer = Answer(status, got, bytes(content))
        if not 200 <= status < 300:
            raise refusal(answer, where=self.where, target=target)
        return answer

    async def lines(self, target: str, max_line: int) -> "Lines":
        """Begin to read an answer that goes on for as long as the session."""
        status, got = await self._begin("GET", target, b"", ())
        lines = Lines(self._part, max_line, where=self.where)
        if status != 200:
            content = await lines.rest()
            raise refusal(Answer(status, got, content), where=self.where, target=target)
        return lines

    async def _begin(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...],
    ) -> tuple[int, Mapping[str, str]]:
        if not self.idle:
            raise Unreachable("closed the connection", where=self.where)
        length = ("content-length", str(len(body)))
        request = h11.Request(
            method=method,
            target=self._path + target,
            headers=[*self._headers, *headers, length],
        )
        out = self._http.send(request) or b""
        if body:
            out += self._http.send(h11.Data(data=body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        await self._send(out)
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise Unreachable(self._hung_up(), where=self.where)
        got = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        self.date = http_date(got.get("date"))
        return event.status_code, got

    async def _part(self) -> bytes | None:
        """The next part of the body; None at its end."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._receive()
                if not self._began and data.startswith(_TLS_ALERT):
                    raise Unreachable(
                        "speaks TLS where this node was told http://",
                        where=self.where,
                        fix="write https:// and set tls.cert_file, .key_file, .ca_file",
                    )
                self._began = self._began or bool(data)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            what = self._hung_up() if self._closed() else f"speaks no HTTP: {error}"
            raise Unreachable(what, where=self.where) from error
        assert event is not h11.NEED_DATA
        return event  # pyright: ignore[reportReturnType]

    def _hung_up(self) -> str:
        if self._began:
            return "closed the connection"
        return f"closed the connection without a word: {self._mute}"

    def _closed(self) -> bool:
        data, closed = self._http.trailing_data
        return closed and not data

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except ssl.SSLError as error:
            raise self._explain(error) from error
        except anyio.EndOfStream as error:  # TLS, whose other end was seen to end
            raise Unreachable(self._hung_up(), where=self.where) from error
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise Unreachable(_reason(error), where=self.where) from error

    async def _receive(self) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""
        except ssl.SSLError as error:
            # With TLS 1.3 a refused client certificate is told here, and not earlier.
            raise self._explain(error) from error
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise Unreachable(_reason(error), where=self.where) from error


class Lines:
    """The lines of an answer, each whole and none longer than *max_line*."""

    def __init__(
        self,
        part: Callable[[], Awaitable[bytes | None]],
        max_line: int,
        *,
        where: str,
    ) -> None:
        self._part = part
        self._max = max_line
        self._where = where
        self._held = bytearray()
        self._looked = 0  # no line ends before here

    async def next(self) -> bytes:
        """Unreachable at the end, and for half a line: that is not even looked at."""
        while (end := self._held.find(b"\n", self._looked, self._max + 1)) < 0:
            self._looked = len(self._held)
            if self._looked > self._max:
                raise Unreachable(
                    f"sends a line longer than {self._max} bytes", where=self._where
                )
            part = await self._part()
            if part is None:
                raise Unreachable("ended the stream", where=self._where)
            self._held += part
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        self._looked = 0
        return line

    async def rest(self) -> bytes:
        content = bytearray()
        while (part := await self._part()) is not None and len(content) < MAX_ANSWER:
            content += part
        return bytes(content)


def refusal(answer: Answer, *, where: str, target: str) -> Refused:
    """Why not, in the control plane's words if it has some."""
    try:
        problem = msgspec.json.decode(answer.body, type=Refusal)
    except UNDECODABLE:
        return Refused(f"answers {target} with {answer.status}", where=where)
    seconds = problem.retry_after_s
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        seconds = None
    accepts = f" (it accepts {problem.accepts})" if problem.accepts else ""
    return Refused(
        f"{problem.code}: {problem.detail or problem.title or answer.status}{accepts}",
        where=where,
        code=problem.code,
        leader=problem.leader,
        retry_after_s=seconds,
    )


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"the connection broke: {cause.strerror}"
    return "the connection broke"
