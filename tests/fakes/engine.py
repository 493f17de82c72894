"""An engine that serves nothing and misbehaves as told.

It answers as llama-server does, which tests/engines/test_engine_contract.py holds it
to, and is up in 20 ms, for it imports nothing that it does not need. What it does wrong
is an argument at the start, or `POST /knob?NAME=VALUE` while it runs.
"""

import argparse
import json
import os
import select
import signal
import socket
import sys
import time

LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
LOST = b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'
NO_KEY = (
    b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
)
NO_JSON = b'{"error":{"code":500,"message":"parse error","type":"server_error"}}'
OPEN = (b"/health", b"/v1/health", b"/models", b"/v1/models")
COMPLETIONS = (b"/completion", b"/completions", b"/v1/completions")

# What llama-server is told and this program has no use for.
IGNORED = (
    *("--threads", "--threads-batch", "--device", "--mmproj", "--lora-scaled"),
    *("--rpc",),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", help="a file that has to be there")
    parser.add_argument("--alias", default="fake")
    parser.add_argument("--ctx-size", type=int, default=2048)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--api-key", default="")
    for name in ("--metrics", "--offline", "--embeddings"):
        parser.add_argument(name, action="store_true")
    for name in IGNORED:
        parser.add_argument(name)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--loads-while", help="loading as long as this file is there")
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
    try:
        return parser.parse_args()
    except SystemExit as end:
        sys.exit(1 if end.code else 0)


class Client:
    """A connection, what has come of a request, and how many tokens are still due."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door
        self.came = b""
        self.due = 0

    def request(self) -> tuple[bytes, bytes] | None:
        """The head and the body of a whole request; None until there is one."""
        head, blank, body = self.came.partition(b"\r\n\r\n")
        if not blank:
            return None
        length = int(header(head, b"content-length") or 0)
        if len(body) < length:
            return None
        self.came = body[length:]
        return head, body[:length]


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun = time.monotonic()
        # What a test changes while it runs.
        self.knobs = {"health": 200.0, "slow": 0.0, "tokens": 0.0, "requests": 0.0}
        self.held: list[bytes] = []
        self.clients: list[Client] = []
        self.is_leaving = False

    @property
    def age(self) -> float:
        return time.monotonic() - self.begun

    @property
    def is_loading(self) -> bool:
        options = self.options
        if options.loads_while and os.path.exists(options.loads_while):  # noqa: PTH110 -- pathlib takes longer to import than this to start
            return True
        return self.age < options.ready_after

    @property
    def is_streaming(self) -> bool:
        return any(one.due for one in self.clients)

    # What it answers ---------------------------------------------------------------

    def answer(self, client: Client, head: bytes, body: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path, _, query = rest.split(b" ", 1)[0].partition(b"?")
        if method == b"POST" and path == b"/knob":
            name, _, value = query.decode().partition("=")
            self.knobs[name] = float(value)
            return reply(200, b"{}")
        if self.knobs["slow"]:
            select.select([], [], [], self.knobs["slow"])
        if self.is_loading:
            return reply(503, LOADING)
        if path not in OPEN and not self.may_enter(head):
            return reply(401, NO_KEY)
        if path == b"/metrics":
            return reply(200, self.metrics(), "text/plain; version=0.0.4")
        if path in (b"/health", b"/v1/health"):
            return reply(int(self.knobs["health"]), b'{"status":"ok"}')
        if path in COMPLETIONS and self.knobs.get("mute"):
            return b""  # taken, and never answered
        if path in COMPLETIONS:
            return self.complete(client, body)
        told = self.told(path)
        return reply(404, LOST) if told is None else reply(200, encoded(told))

    def may_enter(self, head: bytes) -> bool:
        key = self.options.api_key
        return not key or header(head, b"authorization") == f"Bearer {key}".encode()

    def told(self, path: bytes) -> object:
        options = self.options
        window = options.ctx_size // options.parallel
        if path in (b"/models", b"/v1/models"):
            one = {"id": options.alias, "object": "model", "owned_by": "llamacpp"}
            return {"object": "list", "data": [{**one, "meta": {"n_ctx": window}}]}
        if path == b"/props":
            settings = {"n_ctx": window}
            return {
                "total_slots": options.parallel,
                "model_alias": options.alias,
                "model_path": options.model or "",
                "default_generation_settings": settings,
            }
        if path == b"/slots":
            busy = sum(bool(one.due) for one in self.clients)
            slots = range(options.parallel)
            return [
                {"id": n, "n_ctx": window, "is_processing": n < busy} for n in slots
            ]
        return None

    def complete(self, client: Client, body: bytes) -> bytes:
        try:
            wanted = json.loads(body)
        except ValueError:
            return reply(500, NO_JSON)
        count = int(wanted.get("max_tokens") or wanted.get("n_predict") or 16)
        if wanted.get("stream"):
            client.due = count
            return (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
        self.knobs["tokens"] += count
        prompt = len(str(wanted.get("prompt", "")))
        usage = {"completion_tokens": count, "prompt_tokens": prompt}
        usage["total_tokens"] = count + prompt
        return reply(200, encoded({**piece("#" * count, "length"), "usage": usage}))

    def metrics(self) -> bytes:
        running = self.knobs["requests"] + sum(bool(one.due) for one in self.clients)
        lines = (
            f"llamacpp:prompt_tokens_total {self.knobs['tokens']:g}",
            f"llamacpp:tokens_predicted_total {self.knobs['tokens']:g}",
            f"llamacpp:n_decode_total {self.knobs['tokens']:g}",
            f"llamacpp:requests_processing {running:g}",
            "llamacpp:requests_deferred 0",
        )
        return "\n".join(lines).encode() + b"\n"

    def stream(self, client: Client) -> None:
        """The next token of a stream, if its client takes any."""
        client.due -= 1
        self.knobs["tokens"] += 1
        text = encoded(piece("#", None if client.due else "length"))
        events = [b"data: " + text + b"\n\n"]
        if not client.due:
            events += [b"data: [DONE]\n\n", b""]
        for event in events:
            client.door.sendall(b"%x\r\n%s\r\n" % (len(event), event))

    # The life of it ----------------------------------------------------------------

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
        door = None if self.options.unbound else self.bound()
        while True:
            if self.is_leaving and door:
                door.close()
                door = None
            if self.is_leaving and not self.is_streaming:
                os._exit(0)
            watched = [one.door for one in self.clients] + ([door] if door else [])
            ready, _, _ = select.select(watched, [], [], 0.01)
            self.tick()
            if door in ready:
                assert door
                self.clients.append(Client(door.accept()[0]))
            for one in list(self.clients):
                self.look_after(one, is_ready=one.door in ready)

    def bound(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.options.host else socket.AF_INET
        door = socket.socket(family)
        # As real servers do: the port of an engine that just died may be taken again.
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((self.options.host, self.options.port))
            door.listen(64)
        except OSError as error:
            os.write(2, f"couldn't bind: {error}\n".encode())
            sys.exit(1)
        return door

    def look_after(self, client: Client, *, is_ready: bool) -> None:
        try:
            if is_ready:
                came = client.door.recv(65536)
                if not came:
                    raise ConnectionResetError
                client.came += came
                while not client.due and (request := client.request()):
                    client.door.sendall(self.answer(client, *request))
            if client.due and not self.is_leaving:
                self.stream(client)
        except OSError:
            self.clients.remove(client)
            client.door.close()


def reply(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def piece(text: str, reason: str | None) -> dict[str, object]:
    choice = {"text": text, "index": 0, "finish_reason": reason}
    return {"object": "text_completion", "choices": [choice]}


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
    if options.model and not os.path.isfile(options.model):  # noqa: PTH113 -- as above
        os.write(2, f"failed to open {options.model}\n".encode())
        sys.exit(1)
    engine = Engine(options)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:

        def leave(*_: object) -> None:
            select.select([], [], [], options.term_takes)
            engine.is_leaving = True
            if not engine.is_streaming:
                os._exit(0)

        signal.signal(signal.SIGTERM, leave)
    if options.child:
        child(options.child)
    if options.allocate:
        engine.held.append(os.urandom(options.allocate << 20))
    engine.serve()


if __name__ == "__main__":
    sys.exit(main())
