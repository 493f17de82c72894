"""What a server may answer: read as it is meant, or a reason; never the end of us."""

from collections.abc import Iterator

import pytest

from llmgw.weights.faults import Again, Denied
from llmgw.weights.http import Access, Client
from tests.fakes.weights_server import Raw, WeightsServer

TOO_LONG = 2**70


@pytest.fixture
def client() -> Iterator[Client]:
    found = Client(5.0, {})
    yield found
    found.close()


def answer(server: WeightsServer, status: str, *headers: str) -> str:
    """The address of what is answered so."""
    server.put("/model", b"x")
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""])
    server.spoil("/model", Raw(head.encode("latin-1")), times=None)
    return server.url("/model")


HUB = Access(token="x", token_host="hub.example")


@pytest.mark.parametrize(
    ("status", "access", "before", "fix"),
    [
        ("401 Unauthorized", Access(), "", "user:password@host"),
        ("403 Forbidden", Access(), "u:p@", "the user or the password"),
        ("401 Unauthorized", HUB, "", "weights.hf_token_file"),
        ("404 Not Found", Access(), "", "correct the address"),
        ("400 Bad Request", Access(), "", ""),
    ],
)
def test_what_helps_is_of_the_one_who_was_asked(
    client: Client, status: str, access: Access, before: str, fix: str
) -> None:
    """Any server's 401 was said to want the hub's token; a 404 had no advice."""
    with WeightsServer() as server:
        url = answer(server, status, "Content-Length: 0").replace("//", f"//{before}")
        with pytest.raises(Denied) as denied:
            client.probe(url, access)

    assert fix in denied.value.fix
    assert bool(denied.value.fix) == bool(fix)
    assert ("hf_token" in denied.value.fix) == (access is HUB)


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        ("200 OK", (f"Content-Length: {TOO_LONG}",), f"it is {TOO_LONG} bytes long"),
        ("200 OK", ("Content-Length: many",), "it is 'many' bytes long"),
        ("200 OK", ("Content-Length: -5",), "it is '-5' bytes long"),
        ("200 OK", ("Content-Length: 1_0",), "it is '1_0' bytes long"),
        ("200 OK", ("Content-Length: " + "9" * 5000,), "it is '9999"),
        (
            "206 Partial Content",
            (f"Content-Range: bytes 0-0/{TOO_LONG}", "Content-Length: 1"),
            f"it is {TOO_LONG} bytes long",
        ),
        (
            "206 Partial Content",
            ("Content-Range: bytes 0-0/10", f"Content-Length: {TOO_LONG}"),
            f"it is {TOO_LONG} bytes long",
        ),
    ],
)
def test_a_length_that_no_file_has_is_told_as_it_was_said(
    server: WeightsServer,
    client: Client,
    status: str,
    headers: tuple[str, ...],
    why: str,
) -> None:
    with pytest.raises(Denied) as refused:
        client.probe(answer(server, status, *headers))

    assert why in refused.value.what


def test_a_range_with_a_number_beyond_reading_says_no_length(
    server: WeightsServer, client: Client
) -> None:
    """More than 4,300 digits are an error of Python's own, and ended the process."""
    length = f"Content-Range: bytes 0-0/{'9' * 5000}"
    url = answer(server, "206 Partial Content", length, "Content-Length: 1")

    assert client.probe(url).size is None


def test_the_byte_of_a_probe_need_not_come(
    server: WeightsServer, client: Client
) -> None:
    """A server that ends every answer early said in its head all that is needed."""
    length = ("Content-Range: bytes 0-0/10", "Content-Length: 1")

    assert client.probe(answer(server, "206 Partial Content", *length)).size == 10


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ("7", 7.0),
        ("Wed, 02 Dec 2026 10:00:09 GMT", 9.0),
        ("\xb2", None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("soon", None),
    ],
)
def test_when_to_come_again_is_a_time_or_nothing(
    server: WeightsServer, client: Client, after: str, seconds: float | None
) -> None:
    date = "Date: Wed, 02 Dec 2026 10:00:00 GMT"
    wait = f"Retry-After: {after}"
    url = answer(server, "503 Busy", date, wait, "Content-Length: 0")

    with pytest.raises(Again) as refused:
        client.probe(url)

    assert refused.value.after == seconds


@pytest.mark.parametrize(
    "where", ["http://[::1/x", "http://h:port/x", "http://h:0/x", "ftp://h/x"]
)
def test_a_redirect_to_no_address_is_told(
    server: WeightsServer, client: Client, where: str
) -> None:
    url = answer(server, "302 Found", f"Location: {where}", "Content-Length: 0")

    with pytest.raises(Denied, match="redirects to"):
        client.probe(url)


def test_a_redirect_is_followed_to_a_name_in_any_script(
    server: WeightsServer, client: Client
) -> None:
    """Servers send it as it is, in UTF-8, and it must not be quoted twice."""
    server.put("/%20mod%C3%A8le", b"12345")
    raw = "/%20modèle".encode().decode("latin-1")
    url = answer(server, "302 Found", f"Location: {raw}", "Content-Length: 0")

    assert client.probe(url).size == 5
