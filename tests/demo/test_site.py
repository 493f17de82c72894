"""What the demo makes of an engine's answer, whatever it is."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from llmgw.demo import site
from llmgw.errors import EngineError
from llmgw.wire import ReplicaStatus


@contextmanager
def engine(*pieces: bytes, code: int = 200) -> Generator[ReplicaStatus]:
    """Answers everything with *pieces*, the last of them over and over."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code)
            self.end_headers()
            with suppress(OSError):  # the other side has enough
                for piece in pieces:
                    self.wfile.write(piece)
                while len(pieces) > 1:
                    self.wfile.write(pieces[-1])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield ReplicaStatus(
            id="demo",
            generation=1,
            state="ready",
            since_s=1.0,
            address="127.0.0.1",
            ports={"api": server.server_address[1]},
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(content: str) -> bytes:
    return b'{"choices": [{"message": {"content": %s}}]}' % content.encode()


async def test_a_models_text_does_not_steer_the_terminal() -> None:
    with engine(said(r'" a\nb\u001b[2J\u0007 "')) as status:
        assert await site.ask(status, "m", "?") == "a\nb\ufffd[2J\ufffd"


@pytest.mark.parametrize(
    "pieces",
    [
        (said("null"),),
        (said("[1]"),),
        (b'{"choices": []}',),
        (b"[1,2]",),
        (b"\xff\xfe",),
        (b"[" * 200_000,),
        (b"",),
        (b"{", b" " * 65536),
    ],
    ids=["null", "list", "none", "other", "bytes", "deep", "nothing", "endless"],
)
async def test_what_is_no_completion_is_said_to_be_none(
    pieces: tuple[bytes, ...],
) -> None:
    """An answer without an end is not read to the end of this machine's memory."""
    with engine(*pieces) as status, pytest.raises(EngineError) as caught:
        await site.ask(status, "m", "?")

    assert caught.value.what.startswith("gave no completion: ")
    assert "/v1/chat/completions" in caught.value.where
