"""Addresses: one spelling of each is kept, and what is odd is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.address import Address, Complaint, masked, parse, quote
from llmgw.config.servers import Entry, Judged, judge


def judged(*texts: str, secure: bool = False) -> Judged:
    entries = [Entry(f"servers[{number}]", text) for number, text in enumerate(texts)]
    return judge(entries, secure)


def kept(*texts: str, secure: bool = False) -> list[str]:
    found = judged(*texts, secure=secure)
    assert not found.faults
    return [address.text for address in found.addresses]


@pytest.mark.parametrize(
    ("texts", "secure"),
    [
        (("cp1", "http://cp1"), False),
        (("cp1", "CP1:80"), False),
        (("cp1", "cp1:"), False),
        (("cp1", "cp1/"), False),
        (("cp1:080", "cp1:80"), False),
        (("[fd20::1]", "[FD20:0::1]:80"), False),
        (("HTTPS://cp1", "cp1:443"), True),
        (("cp1/a", "cp1/a//"), False),
    ],
)
def test_one_address_in_two_spellings_is_one(
    texts: tuple[str, ...], secure: bool
) -> None:
    """C3: the first spelling stays."""
    (only,) = kept(*texts, secure=secure)

    assert only.endswith(texts[0].rpartition("://")[2])


@pytest.mark.parametrize(
    "texts",
    [
        ("cp1", "cp1."),
        ("a@cp1", "b@cp1"),
        ("cp1", "cp1/a"),
        ("cp1/A", "cp1/a"),
        ("cp1", "cp1:8080"),
        ("[fe80::1%25eth0]", "[fe80::1%25eth1]"),
        ("localhost", "127.0.0.1"),
    ],
)
def test_what_only_looks_alike_stays(texts: tuple[str, ...]) -> None:
    """C3."""
    assert len(kept(*texts)) == 2


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("fd20::1", "IPv6 address without brackets", "write [fd20::1]"),
        ("fd20::1:8080", "without brackets", "or [fd20::1]:8080 if 8080 is the port"),
        ("[fe80::1%eth0]", "a zone that is not written", "write [fe80::1%25eth0]"),
        ("[fe80::1]", "link-local address without a zone", "[fe80::1%25INTERFACE]"),
        ("cp1,cp2", "has a comma in it", 'servers is a list: ["a", "b"]'),
        ("cp1 # the first", "has the character", "remove it"),
        ("cp1#first", "has a fragment", "leave out everything from the # on"),
        ("${CP}:80", "nothing is expanded", "write the value"),
        ("cp1:http", 'has a port that is no number: "http"', ""),
        ("cp1:0", "has the port 0", ""),
        ("[::1]x", "between the host and the port", ""),
        ("255.255.255.255", "not the address of one machine", ""),
        ("[ff02::1]", "not the address of one machine", ""),
        ("010.0.0.1", "no IPv4 address", "without leading zeros"),
        ("10.0.1", "no IPv4 address", ""),
        ("a..b", "neither a name nor an address", ""),
    ],
)
def test_an_address_that_nobody_can_dial_says_why(
    text: str, what: str, fix: str
) -> None:
    """C4, C5, C8, C15, C17: with the part that is wrong and what to write."""
    ((number, complaint),) = judged("cp0", text).faults

    assert number == 1
    assert complaint.what.startswith(f"server {quote(text)} ")
    assert what in complaint.what
    assert fix in complaint.fix


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cp1", "is dialled without TLS"),
        (":8080", "means this machine"),
        ("0.0.0.0", "means this machine"),
        ("[fe80::1%25eth0]", "is link-local"),
        ("169.254.1.1", "is link-local"),
        ("10.20.0.0", "looks like a network"),
        ("bücher.example", 'is looked up as "xn--bcher-kva.example"'),
    ],
)
def test_what_is_legal_and_hardly_meant_is_said(text: str, what: str) -> None:
    """C15, C16, C35, C38."""
    assert any(what in odd.what for _, odd in judged(text).warnings)


def test_loopback_needs_no_tls() -> None:
    """C35."""
    for text in ("localhost", "127.0.0.1:80", "[::1]", "[::ffff:127.0.0.1]"):
        assert not judged(text).warnings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h", "http://u:***@h"),
        ("u:p/w@h", "u:***@h"),
        ("u:p@ss@h", "u:***@h"),
        ("token@h", "***@h"),
        ("http://h/a@b", "http://***@b"),
        ("h:80/x", "h:80/x"),
    ],
)
def test_a_password_is_masked_wherever_it_hides(text: str, shown: str) -> None:
    """C6. Rather too much is hidden than too little."""
    assert masked(text) == shown


@given(st.text())
def test_no_text_breaks_the_judge_or_the_line(text: str) -> None:
    found = judged(text)

    for _, complaint in (*found.faults, *found.warnings):
        assert complaint.what.isprintable()
    for address in found.addresses:
        # What is kept is judged again as itself.
        assert kept(address.text, secure=address.secure) == [address.text]


@pytest.mark.parametrize("text", ["ftp://cp1", "cp1:7443", "", "1http://cp1"])
def test_an_address_without_its_scheme_is_none(text: str) -> None:
    """One that was learned from a control plane may be anything."""
    assert isinstance(parse(text), Complaint)


@given(
    st.sampled_from(["http://", "https://"]),
    st.text(st.sampled_from("a1.:[]@/%25-_"), max_size=14),
)
def test_what_is_parsed_has_a_port_and_is_its_own_text(scheme: str, rest: str) -> None:
    found = parse(scheme + rest)

    if isinstance(found, Address):
        assert found.text == scheme + rest
        assert 1 <= found.port <= 65535
    else:
        assert isinstance(found, Complaint)
        assert found.what
