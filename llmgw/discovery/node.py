"""Who this machine is, and on which address and interface others reach it."""

import errno
import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from llmgw.config.address import Address, unmapped
from llmgw.discovery import netlink
from llmgw.discovery.netlink import IP, Link, Route

log = logging.getLogger(__name__)

# Longest common prefixes of RFC 6724: precedence and label of an address.
_POLICY: tuple[tuple[ipaddress.IPv6Network, int, int], ...] = tuple(
    (ipaddress.IPv6Network(network), precedence, label)
    for network, precedence, label in (
        ("::1/128", 50, 0),
        ("::ffff:0:0/96", 35, 4),
        ("::/96", 1, 3),
        ("2001::/32", 5, 5),
        ("2002::/16", 30, 2),
        ("3ffe::/16", 1, 12),
        ("fec0::/10", 1, 11),
        ("fc00::/7", 3, 13),
        ("::/0", 40, 1),
    )
)
# Somebody beyond every network of a site: the way there is the default route.
_FAR: dict[int, IP] = {
    4: ipaddress.ip_address("192.0.2.1"),
    6: ipaddress.ip_address("2001:db8::1"),
}


class Machine(Protocol):
    """What the machine is asked. OSError says why there is no answer."""

    def hostname(self) -> str: ...

    def links(self) -> tuple[Link, ...]: ...

    def route(self, to: IP, port: int, *, link: int | None = None) -> Route: ...

    def lookup(self, name: str) -> tuple[IP, ...]: ...

    def takes_files(self, directory: str) -> bool: ...


class Here:
    """The machine this runs on. *limit*: seconds for whatever may hang."""

    def __init__(self, limit: float = 3.0) -> None:
        self._limit = limit

    def hostname(self) -> str:
        return os.uname().nodename

    def links(self) -> tuple[Link, ...]:
        return netlink.links()

    def route(self, to: IP, port: int, *, link: int | None = None) -> Route:
        return netlink.route(to, port, link=link)

    def lookup(self, name: str) -> tuple[IP, ...]:
        # A resolver has limits of its own (10 s for each server and search domain), so
        # it is asked in a thread that may be left behind.
        found: list[IP] = []

        def ask() -> None:
            try:
                answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except socket.gaierror:
                # libc does not find `cp1.example.` in the hosts file as cp1.example.
                bare = name.removesuffix(".")
                if bare == name or "." not in bare:
                    raise
                answers = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
            found.extend(ipaddress.ip_address(a[4][0]) for a in answers)

        _within(self._limit, ask, f"no answer within {self._limit:g} s")
        return tuple(found)

    def takes_files(self, directory: str) -> bool:
        """OSError if it is not there and cannot be made, or does not answer."""
        answers: list[bool] = []

        def look() -> None:
            # As root, access(2) says yes to whatever mode; a mount that is read-only
            # it does notice.
            if Path(directory).exists():
                answers.append(os.access(directory, os.W_OK | os.X_OK))
            elif os.access(_standing(Path(directory)), os.W_OK | os.X_OK):
                answers.append(True)
            else:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        _within(self._limit, look, "its file system does not answer")
        return answers[0]


def _standing(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next(above for above in path.absolute().parents if above.exists())


def _within(limit: float, do: Callable[[], None], late: str) -> None:
    errors: list[OSError] = []

    def run() -> None:
        try:
            do()
        except OSError as error:
            errors.append(error)
        except UnicodeError as error:  # a name that DNS cannot spell
            errors.append(OSError(0, f"no such name: {error}"))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        raise TimeoutError(0, late)
    if errors:
        raise errors[0]


class Way(Struct, frozen=True):
    """How a control plane is reached: own address and link, or why there is none."""

    source: IP | None
    link: int | None = None
    reason: str = ""
    is_unresolved: bool = False  # nobody knows an address of its name


def toward(address: Address, machine: Machine) -> Way:
    """The own address of a connection to *address*. Asks, and sends nothing."""
    try:
        link = _zone(address, machine)
        routes = [
            (ip, _route(ip, address.port, link, machine))
            for ip in _ips(address, machine)
        ]
    except OSError as error:
        is_name = address.ip is None
        return Way(None, reason=_words(error), is_unresolved=is_name)
    ordered = sorted(routes, key=_preference)
    if not ordered:
        return Way(None, reason="the name has no address", is_unresolved=True)
    best = ordered[0][1]
    if isinstance(best, OSError):
        return Way(None, reason=f"no route to {ordered[0][0]}: {_words(best)}")
    return Way(best.source, best.link)


def _zone(address: Address, machine: Machine) -> int | None:
    if address.zone is None:
        return None
    found = by_name(address.zone, machine.links())
    if found is None:
        raise OSError(0, f'there is no interface "{address.zone}" at the moment')
    return found.index


def by_name(name: str, links: tuple[Link, ...]) -> Link | None:
    """The link of that name, or of that number if it is one."""
    for link in links:
        if link.name == name:
            return link
    number = int(name) if name.isascii() and name.isdigit() else 0
    return next((link for link in links if link.index == number), None)


def _ips(address: Address, machine: Machine) -> tuple[IP, ...]:
    ip = address.ip
    if not address.host or (ip is not None and unmapped(ip).is_unspecified):
        loopback = "::1" if ip is not None and ip.version == 6 else "127.0.0.1"
        return (ipaddress.ip_address(loopback),)
    if ip is not None:
        return (unmapped(ip),)
    # getaddrinfo takes a lone 0 as an address; to us it is a name nobody has.
    if address.host == "0":
        raise OSError(0, "no such name")
    return tuple(map(unmapped, machine.lookup(address.host)))


def _route(ip: IP, port: int, link: int | None, machine: Machine) -> Route | OSError:
    # The kernel names a route to such an address, and refuses to connect along it.
    if ip.version == 6 and ip.is_link_local and link is None:
        return OSError(errno.EINVAL, "a link-local address needs a zone")
    try:
        return machine.route(ip, port, link=link)
    except OSError as error:
        return error


def _preference(found: tuple[IP, Route | OSError]) -> tuple[bool, bool, bool, int, int]:
    """RFC 6724: what can be reached, in matching scope and kind, IPv4 before fd00::."""
    to, way = found
    precedence, label = _policy(to)
    if isinstance(way, OSError):
        return (True, False, False, -precedence, _scope(to))
    own = _policy(way.source)[1]
    other_scope = _scope(to) != _scope(way.source)
    return (False, other_scope, label != own, -precedence, _scope(to))


def _policy(ip: IP) -> tuple[int, int]:
    six = ip if ip.version == 6 else ipaddress.IPv6Address(f"::ffff:{ip}")
    for network, precedence, label in _POLICY:
        if six in network:
            return precedence, label
    raise AssertionError("::/0 holds every address")


def _scope(ip: IP) -> int:
    return 0x2 if ip.is_link_local or ip.is_loopback else 0xE


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def parsed(address: str) -> IP | None:
    """An address in strict form: no zone, prefix length, port or bracket."""
    if "%" in address:
        return None
    try:
        return unmapped(ipaddress.ip_address(address))
    except ValueError:
        return None


def holders(ip: IP, links: tuple[Link, ...]) -> list[Link]:
    return [link for link in links if unmapped(ip) in link.addresses]


def holder(ip: IP, links: tuple[Link, ...], way: int | None) -> Link | None:
    """Of the links that hold an address, the one that packets leave by.

    Routed hosts have their address on lo and their NICs without one: what NCCL needs
    there is the link of the route. *way* is its index, None if it is not known.
    """
    found = holders(ip, links)
    leaving = next((link for link in links if link.index == way), None)
    if leaving is not None and leaving in found:
        return leaving
    on_loopback = found and all(link.is_loopback for link in found)
    if on_loopback and not ip.is_loopback and leaving is not None:
        return leaving
    return next((link for link in found if link.is_up), found[0] if found else None)


def interface_of(address: str, machine: Machine | None = None) -> str | None:
    """The interface that holds an address of this machine, None if none does."""
    machine = machine or Here()
    ip = parsed(address)
    if ip is None:
        return None
    try:
        links = machine.links()
    except OSError as error:
        log.warning("interfaces cannot be listed: %s", _words(error))
        return None
    if len(found := holders(ip, links)) == 1 and not found[0].is_loopback:
        return found[0].name
    way = _route(_FAR[ip.version], 443, None, machine)
    leaving = None if isinstance(way, OSError) else way.link
    link = holder(ip, links, leaving)
    return link.name if link else None
