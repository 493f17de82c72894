"""Which address and interface are taken, decided on a machine made of data."""

import errno
import ipaddress

import pytest

from llmgw.config.address import Address, parse
from llmgw.discovery.netlink import IP, Link, Route
from llmgw.discovery.node import Here, holder, interface_of, toward
from tests.fakes.machine import FakeMachine
from tests.oracle import vectors

STD = vectors.read("vectors")["envs"]["std"]


def way(text: str, machine: FakeMachine | None = None) -> str | None:
    address = parse(text)
    assert isinstance(address, Address)
    found = toward(address, machine or FakeMachine(STD, "node-a"))
    return None if found.source is None else str(found.source)


class Named(FakeMachine):
    """Knows one more name."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(STD, "node-a")
        self._addresses = addresses

    def lookup(self, name: str) -> tuple[IP, ...]:
        return tuple(map(ipaddress.ip_address, self._addresses))


@pytest.mark.parametrize(
    ("addresses", "source"),
    [
        (("fd20::1", "10.30.0.1"), "10.30.0.5"),
        (("127.0.0.1", "::1"), "::1"),
        (("fe80::1", "10.30.0.1"), "10.30.0.5"),
        (("10.20.0.1", "10.30.0.1"), "10.20.0.5"),
        (("::ffff:10.30.0.1",), "10.30.0.5"),
    ],
)
def test_of_a_names_addresses_the_first_by_rfc_6724_that_can_be_reached(
    addresses: tuple[str, ...], source: str
) -> None:
    """R15: private IPv6 after IPv4, whatever order the resolver gives them in."""
    assert way("http://two.example", Named(*addresses)) == source


def test_nobody_is_this_machine() -> None:
    """R14, C16."""
    assert way("http://:8080") == "127.0.0.1"
    assert way("http://0.0.0.0") == "127.0.0.1"
    assert way("http://[::]:80") == "::1"


class Forbidden(FakeMachine):
    """A unit whose RestrictAddressFamilies forgets AF_NETLINK."""

    def links(self) -> tuple[Link, ...]:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    def route(self, to: IP, port: int, *, link: int | None = None) -> Route:
        return Route(self.links()[0].addresses[0], 1)


def test_no_answer_of_the_kernel_is_a_reason_and_no_crash() -> None:
    """C33."""
    machine = Forbidden(STD, "node-a")
    address = parse("http://10.20.0.1")
    assert isinstance(address, Address)

    found = toward(address, machine)

    assert found.source is None
    assert "Address family not supported" in found.reason
    assert interface_of("10.20.0.5", machine) is None


def link(index: int, name: str, *addresses: str, is_up: bool = True) -> Link:
    return Link(
        index=index,
        name=name,
        is_up=is_up,
        is_loopback=name == "lo",
        addresses=tuple(map(ipaddress.ip_address, addresses)),
    )


@pytest.mark.parametrize(
    ("links", "way", "name"),
    [
        ((link(2, "a", "10.0.0.1"), link(3, "b", "10.0.0.1")), 3, "b"),
        ((link(2, "a", "10.0.0.1", is_up=False), link(3, "b", "10.0.0.1")), None, "b"),
        ((link(2, "a", "10.0.0.1"), link(3, "b", "10.0.0.1")), None, "a"),
        ((link(1, "lo", "10.0.0.1"), link(2, "swp1")), 2, "swp1"),
        ((link(1, "lo", "10.0.0.1"), link(2, "swp1")), None, "lo"),
        ((link(1, "lo", "10.0.0.1"), link(2, "b", "10.0.0.1")), 2, "b"),
        ((link(2, "a", "10.0.0.2"),), 2, None),
    ],
)
def test_of_the_holders_the_one_that_packets_leave_by(
    links: tuple[Link, ...], way: int | None, name: str | None
) -> None:
    """C20, T37."""
    found = holder(ipaddress.ip_address("10.0.0.1"), links, way)

    assert (found.name if found else None) == name


def test_the_machine_the_tests_run_on_has_a_loopback() -> None:
    """The real kernel, in the event loop of nobody: it answers without waiting."""
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.0.1/8") is None
    assert "lo" in [found.name for found in Here().links()]


async def test_the_kernel_is_asked_without_blocking_the_loop() -> None:
    assert interface_of("127.0.0.1") == "lo"
