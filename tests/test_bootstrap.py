"""The set-up of a clone, where the network or the disk does not do its part."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.fakes.ports import free_port

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "packaging").mkdir()
    for name in ("packaging/bootstrap.py", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def started(clone: Path, index: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if "proxy" not in name}
    return subprocess.Popen(
        [sys.executable, "packaging/bootstrap.py"],
        cwd=clone,
        env=env | {"PIP_INDEX_URL": index},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def index(body: bytes) -> Generator[str]:
    """Answers every page with *body*."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_index_that_cannot_be_reached_is_named(clone: Path) -> None:
    where = f"http://127.0.0.1:{free_port()}/simple"
    with started(clone, where) as setup:
        said = setup.communicate(timeout=30)[1]

    assert setup.returncode == 1
    assert f"{where}/pip/" in said
    assert "PIP_INDEX_URL" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"files": []}'])
def test_an_index_that_is_none_is_named(clone: Path, body: bytes) -> None:
    with index(body) as where, started(clone, where) as setup:
        said = setup.communicate(timeout=30)[1]

    assert setup.returncode == 1
    assert "PIP_INDEX_URL" in said
    assert "Traceback" not in said


def test_interrupted_it_says_that_it_can_be_run_again(clone: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with started(clone, f"http://127.0.0.1:{port}/simple") as setup:
            silent.settimeout(30)
            with silent.accept()[0]:  # it waits for an answer now
                setup.send_signal(signal.SIGINT)
                said = setup.communicate(timeout=30)[1]

    assert setup.returncode == 130
    assert "run it again" in said
    assert "Traceback" not in said
