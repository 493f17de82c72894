"""A name means a whole build or none; builds stand side by side and roll back."""

import gzip
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import anyio
import anyio.to_thread
import msgspec
import pytest

from llmgw import pki
from llmgw.config import keys
from llmgw.engines.install import Wish, download, install, roll_back
from llmgw.engines.installed import survey
from llmgw.engines.provision import Provision
from llmgw.engines.unpack import Cap
from llmgw.errors import EngineError, Unreachable
from llmgw.wire import Build
from tests.engines.test_unpack import Item, tar, wheel

SERVER = Item("b/bin/llama-server", b"#!/bin/sh\n", 0o755)


def manifest(**fields: object) -> Item:
    said = {"engine": "llamacpp", "binary": "bin/llama-server", **fields}
    return Item("b/manifest.json", json.dumps(said).encode())


def wish(archive: Path, **changes: object) -> Wish:
    one = Wish(
        name="b1",
        url=archive.as_uri(),
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
    )
    return msgspec.structs.replace(one, **changes)


async def names(engines_dir: Path) -> list[str]:
    look = partial(survey, engines_dir, keys.Engines(), search_path="")
    found = await anyio.to_thread.run_sync(look)
    assert found.problems == ()
    return [build.name for build in found.builds]


async def test_an_archive_with_a_manifest_becomes_a_build(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", SERVER, manifest(version="b10434"))
    engines_dir = tmp_path / "engines"

    build = await install(wish(archive), engines_dir)

    assert build.name == "b1"
    assert build.version == "b10434"
    assert build.digest == f"sha256:{wish(archive).sha256}"
    assert Path(build.binary).read_bytes() == b"#!/bin/sh\n"
    assert await names(engines_dir) == ["b1"]
    assert list(engines_dir.glob(".tmp-*")) == []


async def test_a_wheel_as_its_makers_publish_it(tmp_path: Path) -> None:
    archive = wheel(
        tmp_path / "x.whl",
        Item("pkg/bin/llama-server", b"x", 0o755),
        Item("pkg/bin/ggml-rpc-server", b"x", 0o755),
        Item("pkg-1.dist-info/RECORD"),
    )

    build = await install(wish(archive), tmp_path / "engines")

    assert build.binary.endswith("/pkg/bin/llama-server")
    assert build.rpc_binary == build.binary.replace("llama-", "ggml-rpc-")


@pytest.mark.parametrize("content", [b"<html>not found</html>", b""])
async def test_what_is_no_archive_is_told_by_where_it_came_from(
    tmp_path: Path, content: bytes
) -> None:
    """A path was named that had been removed by then."""
    archive = tmp_path / "b.tgz"
    archive.write_bytes(content)

    with pytest.raises(EngineError) as refused:
        await install(wish(archive), tmp_path / "engines")

    assert refused.value.where == archive.as_uri()
    assert "not of a page about it" in refused.value.fix


async def test_a_build_without_its_program_is_told_by_where_it_came_from(
    tmp_path: Path,
) -> None:
    archive = tar(tmp_path / "b.tgz", manifest(binary="bin/none"))

    with pytest.raises(EngineError, match="there is no binary bin/none") as refused:
        await install(wish(archive), tmp_path / "engines")

    assert refused.value.where == archive.as_uri()


async def test_several_stand_side_by_side_and_one_rolls_back(tmp_path: Path) -> None:
    first = tar(tmp_path / "1", SERVER, manifest(version="1"))
    second = tar(tmp_path / "2", SERVER, manifest(version="2"))
    engines_dir = tmp_path / "engines"
    old = await install(wish(first), engines_dir)
    await install(wish(first, name="other"), engines_dir)

    new = await install(wish(second), engines_dir)

    assert new.version == "2"
    assert await names(engines_dir) == ["b1", "other"]
    assert Path(old.binary).exists(), "what runs keeps its files"

    async def back(name: str) -> object:
        return await anyio.to_thread.run_sync(roll_back, engines_dir, name)

    assert await back("b1") == old
    assert await back("b1") == new
    with pytest.raises(EngineError, match="no build before this one of other"):
        await back("other")


@pytest.mark.parametrize("title", [None, "VLLM::EngineCore"])
async def test_two_of_a_name_are_kept_and_what_runs(
    title: str | None, tmp_path: Path
) -> None:
    """A disk does not fill with builds, and nothing is taken from under an engine:
    neither from one whose command line names its build, nor from one that calls itself
    something else (T53)."""
    engines_dir = tmp_path / "engines"
    # Python closes its script once it is read.
    script = f"#!{sys.executable} -IS\nimport time\ntime.sleep(600)\n".encode()
    program = Path("/bin/sleep").read_bytes() if title else script
    loops = Item("b/bin/llama-server", program, 0o755)
    content: dict[int, Path] = {}

    async def add(number: int, name: str = "b1") -> Path:
        archive = tar(tmp_path / "a.tgz", loops, manifest(version=str(number)))
        build = await install(wish(archive, name=name), engines_dir)
        content[number] = Path(build.binary)
        return content[number]

    binary = await add(0)
    engine = subprocess.Popen([title or binary, "600"], executable=binary)
    try:
        await add(1, "other")
        for number in (2, 3, 4):
            await add(number)
        assert [number for number in content if content[number].exists()] == [
            *(0, 1, 3, 4)
        ]
    finally:
        engine.kill()
        engine.wait()
    assert (await anyio.to_thread.run_sync(roll_back, engines_dir, "b1")).version == "3"
    await add(5)

    assert [number for number in content if content[number].exists()] == [1, 3, 5]


async def test_a_build_before_that_is_gone_is_said(tmp_path: Path) -> None:
    engines_dir = tmp_path / "engines"
    for version in ("1", "2"):
        archive = tar(tmp_path / "a.tgz", SERVER, manifest(version=version))
        await install(wish(archive), engines_dir)
    before = engines_dir / (engines_dir / ".previous/b1").readlink()
    shutil.rmtree(before.parent if before.name == "b" else before)

    with pytest.raises(EngineError, match="the build before this one of b1 is gone"):
        await anyio.to_thread.run_sync(roll_back, engines_dir, "b1")
    assert await names(engines_dir) == ["b1"]


async def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    build = await install(wish(archive), tmp_path / "engines")
    wanted = wish(archive)
    archive.unlink()

    assert await install(wanted, tmp_path / "engines") == build


@pytest.mark.parametrize(
    ("items", "changes", "what"),
    [
        ((SERVER, manifest()), {"sha256": "0" * 64}, "has the SHA-256"),
        ((SERVER, manifest()), {"sha256": "abc"}, "is no SHA-256"),
        ((SERVER, manifest()), {"name": "../b1"}, "is no name for a build"),
        ((SERVER, manifest()), {"name": ".b1"}, "is no name for a build"),
        ((SERVER, manifest()), {"url": "ftp://x/y"}, "is no https://"),
        ((SERVER, manifest()), {"url": "file:///no/such"}, "cannot be read"),
        ((SERVER, manifest()), {"engine": "vllm"}, "of llamacpp, not of vllm"),
        ((Item("readme"),), {}, "has no manifest.json, and no program llama-server"),
        ((manifest(),), {}, "there is no binary bin/llama-server"),
        ((SERVER, manifest(binary="/bin/sh")), {}, "outside of the build"),
        ((SERVER, Item("b/manifest.json", b"{")), {}, "is no manifest"),
        ((SERVER, manifest(), Item("../evil")), {}, "outside of its folder"),
    ],
)
async def test_what_is_wrong_is_said_and_leaves_nothing(
    items: tuple[Item, ...], changes: dict[str, object], what: str, tmp_path: Path
) -> None:
    archive = tar(tmp_path / "a", *items)
    engines_dir = tmp_path / "engines"

    with pytest.raises(EngineError, match=what):
        await install(wish(archive, **changes), engines_dir)

    assert await names(engines_dir) == []
    assert not list(engines_dir.glob(".tmp-*"))
    assert not list(engines_dir.glob(".builds/*"))


async def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    """A link into the Nix store, or a build made by hand."""
    archive = tar(tmp_path / "a", SERVER, manifest())
    (tmp_path / "engines/b1").mkdir(parents=True)

    with pytest.raises(EngineError, match="was not installed by llmgw"):
        await install(wish(archive), tmp_path / "engines")


async def test_an_interrupted_install_leaves_nothing_and_its_sweepings_go(
    tmp_path: Path,
) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    engines_dir = tmp_path / "engines"

    async def never(url: str, to: Path) -> None:
        await anyio.Path(to).write_bytes(b"half")
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await install(wish(archive), engines_dir, fetch=never)
    assert not list(engines_dir.glob(".tmp-*"))

    dead = engines_dir / ".tmp-999999999-abcd"
    dead.mkdir()
    await install(wish(archive), engines_dir)
    assert not dead.exists()


async def test_the_size_has_a_limit(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest(), Item("b/x", bytes(3 << 20)))

    with pytest.raises(EngineError, match="becomes more than 1000000 bytes"):
        await install(wish(archive), tmp_path / "engines", cap=Cap(size=1_000_000))


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/b.tgz",
        "http://\0/b.tgz",
        "http://host:port/b.tgz",
        "http://xn--a/b.tgz",
        "http:///b.tgz",
        "http://127.0.0.1:1/" + "a" * 70_000,
        "file:///%00",
        "file://[x/b.tgz",
    ],
)
async def test_what_is_no_address_is_refused_and_ends_nothing(
    url: str, tmp_path: Path
) -> None:
    """A control plane that named one ended the agent: what the library raises of it is
    none of its errors of HTTP.
    """
    with pytest.raises(
        EngineError, match=r"is no https://, http:// or file:// address"
    ):
        await download(url, tmp_path / "to")


@pytest.mark.parametrize("engine", ["nope", "", "command"])
async def test_an_archive_of_an_engine_that_nobody_can_guess_is_refused(
    engine: str, tmp_path: Path
) -> None:
    """It showed a traceback."""
    archive = tar(tmp_path / "a", SERVER)

    with pytest.raises(EngineError) as refused:
        await install(wish(archive, engine=engine or "none"), tmp_path / "engines")

    assert refused.value.fix


@pytest.mark.parametrize("kind", ["endless", "pipe", "folder"])
async def test_a_file_of_this_machine_is_one_and_has_an_end(
    kind: str, tmp_path: Path
) -> None:
    """A control plane may name it: of a pipe nothing ever comes, of /dev/zero all."""
    if kind == "pipe":
        os.mkfifo(tmp_path / "it")
    elif kind == "folder":
        (tmp_path / "it").mkdir()
    path = Path("/dev/zero") if kind == "endless" else tmp_path / "it"

    with anyio.fail_after(10), pytest.raises(EngineError, match="is no file"):
        await download(path.as_uri(), tmp_path / "to")


async def test_a_download_has_a_limit_wherever_it_is_from(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(bytes(1001))
    cap = Cap(size=1000)
    with served((200, bytes(1001), {})) as url:
        for one in (url, (tmp_path / "it").as_uri()):
            with pytest.raises(EngineError, match="larger than a build may be"):
                await download(one, tmp_path / "to", cap=cap)
    (tmp_path / "it").write_bytes(bytes(1000))
    await download((tmp_path / "it").as_uri(), tmp_path / "to", cap=cap)


async def test_a_file_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    archive = tar(tmp_path / "my build %.tgz", SERVER, manifest())

    await install(wish(archive), tmp_path / "engines")

    assert await names(tmp_path / "engines") == ["b1"]


Answer = tuple[int, bytes, dict[str, str]]


@contextmanager
def served(
    *answers: Answer, tls: ssl.SSLContext | None = None
) -> Generator[str, None, None]:
    """A server that gives these answers in turn, the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = left.pop(0) if len(left) > 1 else left[0]
            if "gzip" in self.headers.get("Accept-Encoding", ""):  # as many would
                body, headers = gzip.compress(body), {"Content-Encoding": "gzip"}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            scheme = "https" if tls else "http"
            yield f"{scheme}://127.0.0.1:{server.server_port}/build.tgz"
        finally:
            server.shutdown()
            thread.join()


async def test_it_is_fetched_from_a_server(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    moved = (302, b"", {"Location": "/elsewhere"})
    with served(moved, (200, archive.read_bytes(), {})) as url:
        await install(wish(archive, url=url), tmp_path / "engines")

    assert await names(tmp_path / "engines") == ["b1"]


async def test_the_file_is_taken_and_not_what_is_in_it(tmp_path: Path) -> None:
    """Servers call a .tgz a tar that they have packed on the way; its digest is of the
    file."""
    archive = tar(tmp_path / "a", SERVER, manifest())
    with served((200, archive.read_bytes(), {"Content-Encoding": "gzip"})) as url:
        await install(wish(archive, url=url), tmp_path / "engines")

    assert await names(tmp_path / "engines") == ["b1"]


@pytest.fixture
def pair(tmp_path: Path) -> pki.Issued:
    pki.init(tmp_path / "ca")
    return pki.issue(tmp_path / "ca", "index", sans=("127.0.0.1",))


async def test_a_server_of_an_authority_of_the_machine_is_trusted(
    pair: pki.Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's own authority is in the system's store, not in a list of Python's."""
    archive = tar(tmp_path / "a", SERVER, manifest())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert_file, pair.key_file)

    def store(context: ssl.SSLContext, _purpose: object) -> None:
        context.load_verify_locations(pair.ca_file)

    with served((200, archive.read_bytes(), {}), tls=tls) as url:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await install(wish(archive, url=url), tmp_path / "engines")
        monkeypatch.setattr(ssl.SSLContext, "load_default_certs", store)
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.delenv("SSL_CERT_DIR", raising=False)
        await install(wish(archive, url=url), tmp_path / "engines")

    assert await names(tmp_path / "engines") == ["b1"]


async def test_from_https_nobody_is_led_to_http(
    pair: pki.Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is on the way reads along, and learns which build is to be broken."""
    archive = tar(tmp_path / "a", SERVER, manifest())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert_file, pair.key_file)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.ca_file))
    with (
        served((200, archive.read_bytes(), {})) as plain,
        served((302, b"", {"Location": plain}), tls=tls) as url,
        pytest.raises(EngineError, match=r"is redirected to http://.*, not https"),
    ):
        await install(wish(archive, url=url), tmp_path / "engines")

    assert await names(tmp_path / "engines") == []


@pytest.mark.parametrize(
    ("status", "error"), [(404, EngineError), (503, Unreachable), (429, Unreachable)]
)
async def test_what_may_come_later_is_told_from_what_will_not(
    status: int, error: type[Exception], tmp_path: Path
) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    with served((status, b"", {})) as url, pytest.raises(error, match=str(status)):
        await install(wish(archive, url=url), tmp_path / "engines")


# On the control plane's word ---------------------------------------------------------


def wanted(archive: Path, **changes: object) -> Build:
    one = Build(
        name="b1",
        engine="llamacpp",
        url=archive.as_uri(),
        sha256=wish(archive).sha256,
    )
    return msgspec.structs.replace(one, **changes)


async def until_changed(provision: Provision, times: int) -> None:
    with anyio.fail_after(10):
        seen = -1
        while provision.changed.value < times:
            seen, _ = await provision.changed.newer_than(seen)


async def test_a_wanted_build_is_tried_until_its_server_answers(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    busy: Answer = (503, b"", {})
    with served(busy, (200, archive.read_bytes(), {})) as url:
        provision = Provision(tmp_path / "engines", keys.Engines(), first=0.01)
        async with anyio.create_task_group() as group:
            await group.start(partial(provision.run))
            provision.wanted.set((wanted(archive, url=url),))
            await until_changed(provision, 1)
            assert "answers 503" in provision.problems()[0].what
            assert provision.installed.value == 0
            await until_changed(provision, 2)
            assert provision.installed.value == 1
            group.cancel_scope.cancel()

    assert provision.problems() == ()
    assert await names(tmp_path / "engines") == ["b1"]


@pytest.mark.parametrize(
    ("changes", "settings", "what"),
    [
        ({"engine": "command"}, keys.Engines(), "may not install programs"),
        ({"engine": "rm"}, keys.Engines(), "may not install programs"),
        ({}, keys.Engines(llamacpp=keys.LlamaCpp(enabled=False)), "is turned off"),
        ({}, keys.Engines(llamacpp=keys.LlamaCpp(path="/x")), "names its program"),
        ({"sha256": "0" * 64}, keys.Engines(), "has the SHA-256"),
    ],
)
async def test_what_this_node_does_not_want_is_refused_once(
    changes: dict[str, object], settings: keys.Engines, what: str, tmp_path: Path
) -> None:
    """T71: one attempt, the reason, no loop."""
    archive = tar(tmp_path / "a", SERVER, manifest())
    provision = Provision(tmp_path / "engines", settings, first=0.001)
    async with anyio.create_task_group() as group:
        await group.start(partial(provision.run))
        one = wanted(archive, **changes)
        provision.wanted.set((one,))
        await until_changed(provision, 1)
        provision.wanted.set((one,))
        with anyio.move_on_after(0.05):
            await until_changed(provision, 2)
        group.cancel_scope.cancel()

    assert what in provision.problems()[0].what
    assert provision.changed.value == 1
    assert await names(tmp_path / "engines") == []


async def test_who_needs_a_build_that_is_on_its_way_waits_for_it(
    tmp_path: Path,
) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    bad = wanted(archive, name="bad", sha256="0" * 64)
    busy: Answer = (503, b"", {})
    with served(busy, busy, (200, archive.read_bytes(), {})) as url:
        provision = Provision(tmp_path / "engines", keys.Engines(), first=0.02)
        async with anyio.create_task_group() as group:
            await group.start(partial(provision.run))
            provision.wanted.set((wanted(archive, url=url), bad))
            with anyio.fail_after(10):
                await provision.settled("b1")
                assert await names(tmp_path / "engines") == ["b1"]
                await provision.settled("bad")
                await provision.settled("never-wanted")
                await provision.settled(None)
            group.cancel_scope.cancel()

    assert [problem.code for problem in provision.problems()] == ["build_missing"]


async def test_who_waits_for_a_build_stops_when_it_is_wanted_no_more(
    tmp_path: Path,
) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    with served((503, b"", {})) as url:
        provision = Provision(tmp_path / "engines", keys.Engines(), first=60)
        async with anyio.create_task_group() as group:
            await group.start(partial(provision.run))
            provision.wanted.set((wanted(archive, url=url),))
            await until_changed(provision, 1)
            group.start_soon(provision.settled, "b1")
            provision.wanted.set(())
            with anyio.fail_after(10):
                await provision.settled("b1")
            group.cancel_scope.cancel()
