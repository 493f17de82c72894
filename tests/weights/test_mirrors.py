"""A mirror is another node's cache, served as it lies; it is asked before the rest."""

import hashlib
import json
import ssl
from pathlib import Path

import pytest

from llmgw import pki
from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.wire import Progress
from tests.fakes.hub import FakeHub
from tests.fakes.weights_server import WeightsServer
from tests.weights.conftest import MIB, asking, noise


def ignore(_: Progress) -> None:
    pass


def serve(server: WeightsServer, cache: Path) -> None:
    """All files below *cache*, under their own names."""
    for path in cache.rglob("*"):
        if path.is_file() and ".llmgw-fetch" not in path.parts:
            server.put(f"/w/{path.relative_to(cache)}", path.read_bytes())


@pytest.fixture
def mutual(tmp_path: Path) -> tuple[ssl.SSLContext, keys.Mirror]:
    """A server that wants a certificate of its own CA, and who may ask it."""
    folder = tmp_path / "pki"
    ca = pki.init(folder)
    server = pki.issue(folder, "mirror", sans=("127.0.0.1",))
    client = pki.issue(folder, "node-1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca.cert_file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(server.cert_file, server.key_file)
    mirror = keys.Mirror(
        url="",
        ca_file=str(ca.cert_file),
        cert_file=str(client.cert_file),
        key_file=str(client.key_file),
    )
    return context, mirror


def at(mirror: keys.Mirror, server: WeightsServer) -> keys.Mirror:
    return keys.Mirror(
        url=server.url("/w"),
        ca_file=mirror.ca_file,
        cert_file=mirror.cert_file,
        key_file=mirror.key_file,
    )


async def test_a_site_without_the_hub_lives_from_its_mirror(
    tmp_path: Path, mutual: tuple[ssl.SSLContext, keys.Mirror]
) -> None:
    context, mirror = mutual
    content = noise(100_000)
    with FakeHub() as hub, WeightsServer(context=context) as server:
        hub.add("owner/name", {"model.gguf": content, "config.json": b"{}"})
        settings = keys.Weights(hf_endpoint=hub.url)
        async with asking(tmp_path / "first", settings) as weights:
            await weights.ensure("hf://owner/name", None, ignore)
        serve(server, tmp_path / "first")
        asked = len(hub.asked)
        settings = keys.Weights(hf_endpoint=hub.url, mirrors=(at(mirror, server),))

        async with asking(tmp_path / "second", settings) as weights:
            path = await weights.ensure("hf://owner/name/*.gguf", None, ignore)

        assert path.read_bytes() == content
        assert len(hub.asked) == asked


@pytest.mark.parametrize("lie", ["a file", "a commit"])
async def test_a_mirror_that_names_places_elsewhere_is_passed_over(
    tmp_path: Path, mutual: tuple[ssl.SSLContext, keys.Mirror], lie: str
) -> None:
    """A marker and a revision are text that whoever runs the mirror writes."""
    context, mirror = mutual
    content = noise(10_000)
    with FakeHub() as hub, WeightsServer(context=context) as server:
        commit = hub.add("owner/name", {"model.gguf": content}).commit
        evil = f"{tmp_path}/evil.gguf" if lie == "a file" else "model.gguf"
        entry = {"size": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
        where = commit if lie == "a file" else "../../../../evil"
        sources = {f"hf://owner/name@{where}": [evil]}
        marker = {"files": {evil: entry}, "sources": sources}
        folder = f"/w/hf/owner/name/{where}"
        server.put("/w/hf/owner/name/refs/main", where.encode())
        server.put(f"{folder}/llmgw-complete.json", json.dumps(marker).encode())
        server.put(f"{folder}/{evil}", b"evil")
        settings = keys.Weights(hf_endpoint=hub.url, mirrors=(at(mirror, server),))
        cache = tmp_path / "a" / "b" / "cache"

        async with asking(cache, settings) as weights:
            path = await weights.ensure("hf://owner/name", None, ignore)

        assert path == cache / "hf/owner/name" / commit / "model.gguf"
        assert path.read_bytes() == content
        assert [p for p in tmp_path.rglob("*") if "evil" in p.name] == []


async def test_what_a_mirror_has_not_comes_from_where_the_source_says(
    tmp_path: Path, server: WeightsServer, mutual: tuple[ssl.SSLContext, keys.Mirror]
) -> None:
    context, mirror = mutual
    content = noise(9 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    server.put("/model.gguf", content)
    with WeightsServer(context=context) as empty:
        settings = keys.Weights(mirrors=(at(mirror, empty),))
        async with asking(tmp_path / "c", settings) as weights:
            path = await weights.ensure(server.url("/model.gguf"), digest, ignore)

        assert path.read_bytes() == content
        assert [r.status for r in empty.requests] == [404, 404]


async def test_a_mirror_s_wrong_file_is_not_taken(
    tmp_path: Path, server: WeightsServer, mutual: tuple[ssl.SSLContext, keys.Mirror]
) -> None:
    context, mirror = mutual
    content = noise(9 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    server.put("/model.gguf", content)
    with WeightsServer(context=context) as other:
        host = f"http/127.0.0.1_{server.port}/model.gguf"
        other.put(f"/w/{host}/model.gguf", noise(9 * MIB, seed=5))
        settings = keys.Weights(mirrors=(at(mirror, other),))
        async with asking(tmp_path / "c", settings) as weights:
            path = await weights.ensure(server.url("/model.gguf"), digest, ignore)

        assert path.read_bytes() == content
        assert other.sent() > 9 * MIB


async def test_a_mirror_of_another_ca_is_not_trusted(
    tmp_path: Path, mutual: tuple[ssl.SSLContext, keys.Mirror]
) -> None:
    context, _ = mutual
    with WeightsServer(context=context) as server:
        server.put("/model", b"x")
        async with asking(tmp_path / "c") as weights:
            with pytest.raises(WeightsError, match="not trusted") as refused:
                await weights.ensure(server.url("/model"), None, ignore)

    assert refused.value.final
    assert "SSL_CERT_FILE" in refused.value.fix


async def test_plain_http_from_elsewhere_needs_a_digest(tmp_path: Path) -> None:
    async with asking(tmp_path) as weights:
        with pytest.raises(WeightsError, match="without a digest") as refused:
            await weights.ensure("http://mirror.example/model", None, ignore)

    assert refused.value.final
