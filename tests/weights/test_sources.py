"""What people and control planes name as a source: one, or a reason why it is none."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from llmgw.errors import WeightsError
from llmgw.weights.faults import Again, Denied
from llmgw.weights.http import Client
from llmgw.weights.proxies import proxy_for
from llmgw.weights.sources import Local, Web, parse
from tests.fakes.weights_server import Redirect, WeightsServer


@pytest.fixture
def client() -> Iterator[Client]:
    found = Client(5.0, {})
    yield found
    found.close()


@pytest.mark.parametrize(
    "host",
    [
        "[::1",
        "[fe80::x]",
        "a..b",
        ".a",
        "a" * 64,
        "a." * 130 + "a",
        "h o",
        "h%00",
        "é.example",
        "h:port",
        "h:99999",
    ],
)
def test_what_is_no_host_is_refused_before_it_is_asked(host: str) -> None:
    """The library raises of its own over each; the fetch process ended, and every other
    fetch of the node with it, whenever the replica was tried.
    """
    with pytest.raises(WeightsError, match="is no address") as refused:
        parse(f"https://{host}/model.gguf")

    assert refused.value.final
    assert refused.value.fix


@pytest.mark.parametrize(
    "host", ["h", "h.example.", "h_1:8080", "xn--caf-dma.example", "[::1]", "[::1]:8"]
)
def test_what_is_a_host_is_taken(host: str) -> None:
    assert parse(f"https://{host}/m") == Web(url=f"https://{host}/m")


def test_a_scheme_may_be_written_large() -> None:
    assert parse("HTTPS://host/m") == Web(url="https://host/m")
    assert parse("File:///m") == Local(path="/m")


def test_a_path_is_told_how_it_is_written_as_a_source() -> None:
    with pytest.raises(WeightsError) as refused:
        parse("/models/m.gguf")

    assert refused.value.fix == "write file:///models/m.gguf"


def test_a_path_with_a_nul_is_none() -> None:
    with pytest.raises(WeightsError, match="as no path has"):
        parse("file:///models/%00")


@pytest.mark.parametrize("name", ["modèle.gguf", "model 7b.gguf", "模型.gguf", "a%20b"])
def test_a_name_of_any_letters_is_asked_for(client: Client, name: str) -> None:
    """An accent ended the fetch process, a space was asked for again and again."""
    with WeightsServer() as server:
        server.put(f"/{quote(name, safe='%')}", b"model")

        found = client.probe(server.url(f"/{name}"))

    assert found.size == 5


def test_an_ipv6_address_without_a_port_is_that_address(client: Client) -> None:
    """The library took its last part for the port, and the rest for a name."""
    with pytest.raises(Again) as error:
        client.probe("https://[::1]/model")

    assert "not known" not in error.value.what


def test_a_redirect_to_what_is_no_host_is_final(client: Client) -> None:
    with WeightsServer() as server:
        server.put("/model", b"x")
        server.spoil("/model", Redirect(to="http://a..b/model"), times=None)

        with pytest.raises(Denied, match=r"'a\.\.b', which is no name of a host"):
            client.probe(server.url("/model"))


@pytest.mark.parametrize("proxy", ["http://[::1", "proxy:port"])
def test_a_proxy_that_is_no_address_is_named(proxy: str) -> None:
    with pytest.raises(WeightsError, match="is no address of a proxy") as refused:
        proxy_for("https://host/m", {"HTTPS_PROXY": proxy})

    assert refused.value.where == "https_proxy"
