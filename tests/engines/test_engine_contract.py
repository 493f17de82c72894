"""What the supervisor relies on of an engine: the fake one and a real one alike.

A fake that is kinder than the real thing would let every test of the supervisor pass.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from llmgw.engines.place import Build
from tests.fakes import engine as fake
from tests.fakes.ports import free_port
from tests.models import tiny_gguf

HELD_LOAD = Path(fake.__file__).with_name("held_load.c")
PATIENCE = 20.0
API = ("/health", "/v1/models", "/models", "/props", "/slots", "/metrics", "/nowhere")
LOADING = {"message": "Loading model", "type": "unavailable_error", "code": 503}


class Server:
    """A program that is one of the two, and how it was started."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        port: int,
        log: Path,
        *,
        is_real: bool,
    ) -> None:
        self.is_real = is_real
        self.process = process
        self.port = port
        self.log = log
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def ready(self) -> "Server":
        def is_well() -> bool:
            try:
                return self.get("/health").status_code == 200
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
                return False

        until(is_well)
        return self

    def accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def end(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


class Starts(Protocol):
    """Start it with *options*; *held*: it loads while that file is there."""

    def __call__(
        self, *options: str, port: int | None = None, held: Path | None = None
    ) -> Server: ...


@pytest.fixture(params=["fake", "llama-server"])
def start(
    request: pytest.FixtureRequest, tmp_path: Path, tiny: Path
) -> Iterator[Starts]:
    servers: list[Server] = []
    is_real = request.param == "llama-server"
    if is_real:
        llama: Build = request.getfixturevalue("llama")
        program = (llama.binary, "--offline", "--device", "none", "--threads", "1")
    else:
        program = (sys.executable, "-S", fake.__file__)

    def one(*options: str, port: int | None = None, held: Path | None = None) -> Server:
        port = port or free_port()
        env = dict(os.environ)
        model = () if "--model" in options else ("--model", str(tiny))
        if held and is_real:
            env |= {"LD_PRELOAD": held_load(tmp_path), "LLMGW_TEST_HOLD": str(held)}
        elif held:
            options = (*options, "--loads-while", str(held))
        log = tmp_path / f"log{len(servers)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                (*program, "--port", str(port), "--metrics", *model, *options),
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
            )
        servers.append(Server(process, port, log, is_real=is_real))
        return servers[-1]

    yield one
    for server in servers:
        server.end()


def held_load(folder: Path) -> str:
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler to hold a real load: apt-get install gcc")
    library = folder / "held_load.so"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(HELD_LOAD), "-ldl"], check=True)
    return str(library)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)  # noqa: TID251 -- a plain test, between two looks


def test_the_port_is_bound_before_the_load_ends_and_all_is_503_meanwhile(
    start: Starts, tmp_path: Path
) -> None:
    """T15: a bound port is not a ready engine, whatever is asked."""
    held = tmp_path / "held"
    held.touch()
    server = start(held=held)
    until(server.accepts)

    answers = [server.get(path) for path in API]

    assert [one.status_code for one in answers] == [503] * len(API)
    assert all(one.json() == {"error": LOADING} for one in answers)
    held.unlink()
    server.ready()
    assert server.get("/v1/models").status_code == 200


def test_what_it_says_of_itself(start: Starts) -> None:
    server = start("--alias", "m", "--ctx-size", "512", "--parallel", "2").ready()

    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/v1/health").json() == {"status": "ok"}
    for path in ("/v1/models", "/models"):
        [model] = server.get(path).json()["data"]
        assert (model["id"], model["object"]) == ("m", "model")
        assert model["owned_by"] == "llamacpp"
        assert model["meta"]["n_ctx"] == 256
    props = server.get("/props").json()
    assert (props["total_slots"], props["model_alias"]) == (2, "m")
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert Path(props["model_path"]).is_file()
    slots: list[dict[str, Any]] = server.get("/slots").json()
    assert [(s["id"], s["n_ctx"], s["is_processing"]) for s in slots] == [
        (0, 256, False),
        (1, 256, False),
    ]


def test_a_path_that_is_none_is_404(start: Starts) -> None:
    answer = start().ready().get("/nowhere")

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "File Not Found"


def metric(server: Server, name: str) -> float:
    for line in server.get("/metrics").text.splitlines():
        if line.startswith(f"llamacpp:{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no {name}")


def test_a_completion_has_as_many_tokens_as_were_asked_for_and_is_counted(
    start: Starts,
) -> None:
    """T91: the counters by which a busy engine is told from a dead one."""
    server = start().ready()
    names = ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total")
    assert [metric(server, name) for name in names] == [0, 0, 0]
    assert metric(server, "requests_deferred") == 0

    body = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}
    answer = server.client.post("/v1/completions", json=body).json()

    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 5
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["text"]) >= 5
    assert all(metric(server, name) > 0 for name in names)
    assert metric(server, "requests_processing") == 0


def test_a_stream_comes_in_pieces_and_ends_with_done(start: Starts) -> None:
    server = start().ready()
    body = {"prompt": "x", "max_tokens": 3, "stream": True, "ignore_eos": True}

    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        kind = answer.headers["content-type"]
        events = [line for line in answer.iter_lines() if line]

    assert kind == "text/event-stream"
    assert len(events) >= 4
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"


def test_a_body_that_is_no_json_is_an_error_and_not_the_end(start: Starts) -> None:
    server = start().ready()

    answer = server.client.post("/v1/completions", content=b"{broken")

    assert answer.status_code == 500
    assert server.get("/health").status_code == 200


def test_a_key_is_wanted_for_all_but_health_and_the_models(start: Starts) -> None:
    """Health is asked without a key, and must not depend on one."""
    server = start("--api-key", "k").ready()

    for path in ("/health", "/v1/health", "/v1/models", "/models"):
        assert server.get(path).status_code == 200
    for path in ("/props", "/slots", "/metrics", "/nowhere"):
        answer = server.get(path)
        assert answer.status_code == 401
        assert answer.json()["error"]["message"] == "Invalid API Key"
    assert server.get("/slots", Authorization="Bearer k").status_code == 200
    assert server.client.post("/v1/completions", json={}).status_code == 401


@pytest.mark.parametrize(
    "options",
    [("--model", "/nowhere/x.gguf"), ("--no-such-flag",), ("--ctx-size", "many")],
    ids=["bad path", "unknown flag", "bad value"],
)
def test_what_cannot_be_ends_at_once_with_1(
    start: Starts, options: tuple[str, ...]
) -> None:
    """T55: within the time of a start, and with a word about it."""
    assert last_words(lambda: start(*options))


def last_words(start: Callable[[], Server]) -> str:
    """Of one that ends with 1, each time. A real one may do so before its log thread
    has written a word, once in a hundred times."""
    for _ in range(5):
        server = start()
        assert server.process.wait(PATIENCE) == 1
        if said := server.log.read_text():
            return said
    return ""


def test_a_port_that_is_taken_ends_it_at_once_with_1(start: Starts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        assert last_words(lambda: start(port=holder.getsockname()[1]))


def test_sigterm_ends_one_that_is_idle_with_0(start: Starts) -> None:
    server = start().ready()
    # The first 200 comes before llama-server knows what to do about a signal.
    server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})

    server.process.terminate()

    assert server.process.wait(PATIENCE) == 0


def test_sigterm_ends_one_that_loads(start: Starts, tmp_path: Path) -> None:
    """An engine that is no longer wanted has not always come so far as to serve."""
    held = tmp_path / "held"
    held.touch()
    server = start(held=held)
    until(server.accepts)

    server.process.terminate()
    held.unlink()

    assert server.process.wait(PATIENCE) is not None


def is_stalled(server: int, client: int) -> bool:
    """Whether *client* takes nothing and the kernel takes no more for it.

    It lets one write while a third of its buffer is free. A queue that does not grow
    for a while is no such fact: its server may have had no CPU. The buffer itself grows
    at the answer to the first question whether there is room; by the second it has.
    """
    ends = ("sport", "=", f":{server}", "and", "dport", "=", f":{client}")
    said = subprocess.run(
        ["ss", "-tminoH", *ends], capture_output=True, text=True, check=True
    ).stdout
    queued, size = re.search(r",w(\d+),", said), re.search(r",tb(\d+),", said)
    assert queued is not None, said
    assert size is not None, said
    asked = re.search(r" backoff:(\d+) ", said)
    was_asked = "persist" in said and asked is not None and int(asked[1]) > 1
    return was_asked and 3 * int(queued[1]) > 2 * int(size[1])


def test_sigterm_waits_for_the_client_of_an_open_stream(
    start: Starts, tmp_path: Path
) -> None:
    """T18: for ever, if the client neither reads nor goes. Nobody else gets in."""
    if shutil.which("ss") is None:
        pytest.skip("needs ss to see a full buffer: apt-get install iproute2")
    # A stream that ends by itself is no test: it is larger than the kernel's buffers.
    tiny_gguf.write(tmp_path / "long.gguf", context=60_000)
    window = ("--ctx-size", "60000", "--parallel", "1")
    server = start("--model", str(tmp_path / "long.gguf"), *window).ready()
    server.client.close()  # or it would be one more that the server waits for
    # 200 numbers with each token: the buffers are full in 0.3 s, and not in 10.
    wanted = b'"stream":true,"ignore_eos":true,"logprobs":200'
    body = b'{"prompt":"x","max_tokens":59000,%s}' % wanted
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode())
        reader.sendall(body)
        assert reader.recv(64).startswith(b"HTTP/1.1 200")

        # Full to the last buffer: with room in them a real one ends by itself.
        if server.is_real:
            until(lambda: is_stalled(server.port, reader.getsockname()[1]))

        server.process.send_signal(signal.SIGTERM)
        until(lambda: not server.accepts())

        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1.0)
    assert server.process.wait(PATIENCE) == 0
