"""Links, addresses and routes, asked of the kernel itself.

Not through libc: its interface names are labels (`eth0:mgmt`), and of a route it says
only what a UDP socket would take, where the link to a control plane is TCP.
"""

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator

from msgspec import Struct

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_HEAD = struct.Struct("=IHHII")  # length, type, flags, number, port
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix, flags, scope, index
_ROUTE = struct.Struct(
    "=BBBBBBBBI"
)  # family, dst, src, tos, table, protocol, scope, type

_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_NEWLINK, _GETLINK, _NEWADDR, _GETADDR, _NEWROUTE, _GETROUTE = 16, 18, 20, 22, 24, 26
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINK_NETNSID = 3, 10, 37
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_PREFSRC, _RTA_UID = 1, 4, 7, 25
_RTA_IP_PROTO, _RTA_DPORT = 27, 29
# A route that leads nowhere, and what a connection along it would be told.
_NOWHERE = {6: errno.EINVAL, 7: errno.EHOSTUNREACH, 8: errno.EACCES}


class Link(Struct, frozen=True):
    """One network interface. *peers*: the far ends of point-to-point addresses.

    *is_paired*: it is one end of a pair whose other end is in another network
    namespace, as in a container.
    """

    index: int
    name: str
    is_up: bool
    is_loopback: bool = False
    is_paired: bool = False
    master: int | None = None
    addresses: tuple[IP, ...] = ()
    peers: tuple[IP, ...] = ()


class Route(Struct, frozen=True):
    """By which link packets leave, and with which own address."""

    source: IP
    link: int


def links() -> tuple[Link, ...]:
    """All of them, up or down, by index. OSError if it is not permitted."""
    own: dict[int, list[IP]] = {}
    far: dict[int, list[IP]] = {}
    for body in _ask(_GETADDR, _DUMP, _ADDRESS.pack(0, 0, 0, 0, 0), _NEWADDR):
        index = _ADDRESS.unpack_from(body)[4]
        attributes = dict(_attributes(body[_ADDRESS.size :]))
        address, local = attributes.get(_IFA_ADDRESS), attributes.get(_IFA_LOCAL)
        if local is None:
            local = address
        if local is not None:
            own.setdefault(index, []).append(ipaddress.ip_address(local))
        if address is not None and address != local:
            far.setdefault(index, []).append(ipaddress.ip_address(address))
    found = [
        _link(body, own, far)
        for body in _ask(_GETLINK, _DUMP, _LINK.pack(0, 0, 0, 0, 0), _NEWLINK)
    ]
    return tuple(sorted(found, key=lambda link: link.index))


def _link(body: bytes, own: dict[int, list[IP]], far: dict[int, list[IP]]) -> Link:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    attributes = dict(_attributes(body[_LINK.size :]))
    master = attributes.get(_IFLA_MASTER)
    return Link(
        index=index,
        name=os.fsdecode(attributes[_IFLA_IFNAME].rstrip(b"\0")),
        is_up=bool(flags & 0x1),
        is_loopback=bool(flags & 0x8),
        is_paired=_IFLA_LINK_NETNSID in attributes,
        master=None if master is None else int.from_bytes(master, "little"),
        addresses=tuple(own.get(index, ())),
        peers=tuple(far.get(index, ())),
    )


def route(to: IP, port: int, *, link: int | None = None) -> Route:
    """The way of a TCP connection of this process. OSError says why there is none.

    Nothing is sent. Policy rules by user, protocol and port are followed, as the
    connection would follow them.
    """
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    request = _ROUTE.pack(family, to.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    request += _attribute(_RTA_DST, to.packed)
    request += _attribute(_RTA_IP_PROTO, bytes([socket.IPPROTO_TCP]))
    request += _attribute(_RTA_DPORT, port.to_bytes(2, "big"))
    request += _attribute(_RTA_UID, struct.pack("=I", os.geteuid()))
    if link is not None:
        request += _attribute(_RTA_OIF, struct.pack("=I", link))
    for body in _ask(_GETROUTE, 0, request, _NEWROUTE):
        kind = _ROUTE.unpack_from(body)[7]
        if kind in _NOWHERE:
            raise OSError(_NOWHERE[kind], os.strerror(_NOWHERE[kind]))
        attributes = dict(_attributes(body[_ROUTE.size :]))
        source, out = attributes.get(_RTA_PREFSRC), attributes.get(_RTA_OIF)
        if source is None or out is None:
            raise OSError(errno.EADDRNOTAVAIL, "no own address to leave with")
        return Route(ipaddress.ip_address(source), struct.unpack("=I", out)[0])
    raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


def _ask(kind: int, flags: int, request: bytes, wanted: int) -> Iterator[bytes]:
    head = _HEAD.pack(_HEAD.size + len(request), kind, flags | _REQUEST, 1, 0)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as kernel:
        # The kernel answers while it is asked: there is nothing to wait for.
        kernel.setblocking(False)
        kernel.bind((0, 0))
        kernel.send(head + request)
        more = True
        while more:
            more = False
            for message, body in _messages(kernel.recv(256 * 1024)):
                if message == _DONE:
                    return
                if message == _ERROR:
                    number = -int(struct.unpack_from("=i", body)[0])
                    raise OSError(number, os.strerror(number))
                if message == wanted:
                    yield body
            more = bool(flags & _DUMP)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEAD.size <= len(data):
        length, kind, _, _, _ = _HEAD.unpack_from(data, at)
        yield kind, data[at + _HEAD.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (max(length, 4) + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    padding = b"\0" * (-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding
