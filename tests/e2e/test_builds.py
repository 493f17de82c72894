"""A build on the control plane's word, from the snapshot to the facts and the start."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llmgw.agent.door import ask
from tests.e2e.fleet import Fleet, llmgw, until
from tests.engines.test_install import manifest
from tests.engines.test_unpack import Item, tar
from tests.fakes import engine as fake
from tests.fakes.ports import free_port


@pytest.fixture
def mirror(tiny: Path) -> Iterator[int]:
    """The port of a server that has the tiny model."""
    handler = partial(Quiet, directory=str(tiny.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def fact(fleet: Fleet, name: str) -> Any:
    (facts,) = ask(fleet.socket, "survey")
    return facts["facts"][name].get("value")


def builds(fleet: Fleet) -> dict[str, str | None]:
    found: list[dict[str, Any]] = fact(fleet, "builds") or []
    return {one["name"]: one.get("version") for one in found}


def archive(fleet: Fleet, version: str) -> tuple[str, str]:
    program = f'#!/bin/sh\nexec {sys.executable} -S {fake.__file__} "$@"\n'.encode()
    server = Item("b/bin/llama-server", program, 0o755)
    path = tar(fleet.folder / f"{version}.tgz", server, manifest(version=version))
    return path.as_uri(), hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_build_and_weights_are_fetched_shown_and_served_from(
    fleet: Fleet, mirror: int
) -> None:
    """Nobody waits for the next survey, which is an hour away."""
    port = free_port()
    (fleet.folder / "desired.json").write_text("{}")
    fleet.control("cp1", port, "leader 1", "--admin-token-file", fleet.folder / "token")
    rare = '[discovery]\ninterval = "1h"\nrescan_models = "1h"\n'
    fleet.write(f"http://127.0.0.1:{port}", extra=rare)
    fleet.agent()
    fleet.connected(port)
    url, digest = archive(fleet, "b1")
    model = {"name": "m", "source": f"http://127.0.0.1:{mirror}/tiny.gguf"}
    replica = {"id": "a", "engine": "llamacpp", "build": "fake", "model": model}
    build = {"name": "fake", "engine": "llamacpp", "url": url, "sha256": digest}
    fleet.put(port, {"replicas": [replica], "builds": [build]})

    status = fleet.replica("ready")
    until(lambda: builds(fleet).get("fake") == "b1", "it is among the facts", 10)
    until(lambda: "tiny.gguf" in str(fact(fleet, "models")), "so is the model", 10)

    url, digest = archive(fleet, "b2")
    done = subprocess.run(
        llmgw(
            *("engines", "install", url, "--sha256", digest, "--name", "fake"),
            *("--config", fleet.folder / "agent.toml", "--socket", fleet.socket),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    until(lambda: builds(fleet).get("fake") == "b2", "the agent was told", 10)
    assert fleet.replica("ready")["pid"] == status["pid"]  # it runs on as it began
