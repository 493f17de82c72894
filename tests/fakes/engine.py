"""An engine that serves nothing and misbehaves as told.

It answers as llama-server does (503 on every path while it loads, then 200) and is up
in 20 ms, for it imports nothing that it does not need. What it does wrong is an
argument at the start, or `POST /knob?NAME=VALUE` while it runs.
"""

import argparse
import os
import select
import signal
import socket
import sys
import time

LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--exit-after", type=float, help="ends by itself")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--say", default="", help="printed before anything else")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--term-takes", type=float, default=0.0)
    parser.add_argument("--unbound", action="store_true", help="refuses connections")
    parser.add_argument("--load", action="store_true", help="memory grows till ready")
    parser.add_argument("--child", choices=("plain", "setsid", "double"))
    parser.add_argument("--allocate", type=int, default=0, help="MiB, at once")
    parser.add_argument("--chatter", type=int, default=0, help="bytes a second logged")
    return parser.parse_args()


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun = time.monotonic()
        # What a test changes while it runs.
        self.knobs = {"health": 200.0, "slow": 0.0, "tokens": 0.0, "requests": 0.0}
        self.rate = 0.0
        self.held: list[bytes] = []

    @property
    def age(self) -> float:
        return time.monotonic() - self.begun

    def answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path, _, query = rest.split(b" ", 1)[0].partition(b"?")
        if method == b"POST" and path == b"/knob":
            name, _, value = query.decode().partition("=")
            self.knobs[name] = float(value)
            return reply(200, b"{}")
        if self.knobs["slow"]:
            select.select([], [], [], self.knobs["slow"])
        if self.age < self.options.ready_after:
            return reply(503, LOADING)
        if path == b"/metrics":
            return reply(200, self.metrics(), "text/plain")
        if path in (b"/health", b"/v1/health"):
            return reply(int(self.knobs["health"]), b'{"status":"ok"}')
        if path == b"/v1/models":
            return reply(200, b'{"object":"list","data":[{"id":"fake"}]}')
        return reply(404, b'{"error":{"message":"File Not Found","code":404}}')

    def metrics(self) -> bytes:
        lines = (
            f"llamacpp:prompt_tokens_total {self.knobs['tokens']:g}",
            f"llamacpp:tokens_predicted_total {self.knobs['tokens']:g}",
            f"llamacpp:requests_processing {self.knobs['requests']:g}",
            "llamacpp:requests_deferred 0",
        )
        return "\n".join(lines).encode() + b"\n"

    def tick(self) -> None:
        """A hundredth of a second has passed."""
        options = self.options
        if options.exit_after is not None and self.age >= options.exit_after:
            os._exit(options.exit_code)
        if options.load and self.age < options.ready_after:
            self.held.append(os.urandom(1 << 20))
        self.knobs["tokens"] += self.knobs.get("rate", 0.0) / 100
        if options.chatter:
            line = b"x" * 99 + b"\n"
            os.write(1, line * (options.chatter // 10_000 + 1))

    def serve(self) -> None:
        family = socket.AF_INET6 if ":" in self.options.host else socket.AF_INET
        door = socket.socket(family)
        # As real servers do: the port of an engine that just died may be taken again.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not self.options.unbound:
            door.bind((self.options.host, self.options.port))
            door.listen(64)
        open_: list[socket.socket] = []
        while True:
            watched = open_ if self.options.unbound else [door, *open_]
            ready, _, _ = select.select(watched, [], [], 0.01)
            self.tick()
            for one in ready:
                if one is door:
                    open_.append(door.accept()[0])
                    continue
                try:
                    request = one.recv(65536)
                    if request:
                        one.sendall(self.answer(request))
                        continue
                except OSError:
                    pass
                open_.remove(one)
                one.close()


def reply(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def child(kind: str) -> None:
    """Leaves something behind, as workers of a killed API server do."""
    if os.fork():
        return
    if kind in ("setsid", "double"):
        os.setsid()
    if kind == "double" and os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def main() -> None:
    options = arguments()
    if options.say:
        os.write(2, options.say.encode() + b"\n")
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:

        def leave(*_: object) -> None:
            select.select([], [], [], options.term_takes)
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
    if options.child:
        child(options.child)
    engine = Engine(options)
    if options.allocate:
        engine.held.append(os.urandom(options.allocate << 20))
    engine.serve()


if __name__ == "__main__":
    sys.exit(main())
