"""A machine made of data: the same questions, answered from a description.

tests/discovery/test_node_netns.py builds the described machine in a namespace and asks
the kernel the same, so that this cannot drift from the real thing unnoticed.
"""

import errno
import ipaddress
import os
from typing import Any

from llmgw.discovery.netlink import IP, Link, Route


class FakeMachine:
    """*description*: as in tests/oracle, with networks and default routes only."""

    def __init__(self, description: dict[str, Any], hostname: str) -> None:
        self._hostname = hostname
        self._hosts = description["hosts"]
        self._networks: list[
            tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, int]
        ]
        self._networks = []
        self.read_only: set[str] = set()
        self.asked: list[str] = []
        loopback = ("127.0.0.1/8", "::1/128")
        described = [("lo", loopback)]
        described += [(i["name"], i["addresses"]) for i in description["interfaces"]]
        self._links: list[Link] = []
        for index, (name, addresses) in enumerate(described, 1):
            interfaces = [ipaddress.ip_interface(text) for text in addresses]
            self._networks += [(interface, index) for interface in interfaces]
            self._links.append(
                Link(
                    index=index,
                    name=name,
                    is_up=True,
                    is_loopback=index == 1,
                    addresses=tuple(interface.ip for interface in interfaces),
                )
            )
        self._default: dict[int, int] = {}
        for text in description["routes"]:
            words = text.split()
            assert words[0] == "default", "the only kind that is played"
            index = next(x.index for x in self._links if x.name == words[4])
            self._default[ipaddress.ip_address(words[2]).version] = index

    def hostname(self) -> str:
        return self._hostname

    def links(self) -> tuple[Link, ...]:
        return tuple(self._links)

    def lookup(self, name: str) -> tuple[IP, ...]:
        self.asked.append(name)
        wanted = name.lower().rstrip(".") if "." in name.rstrip(".") else name.lower()
        found = [
            ipaddress.ip_address(line.split()[0])
            for line in self._hosts
            if wanted in line.lower().split()[1:]
        ]
        if not found:
            raise OSError(0, "Name or service not known")
        return tuple(found)

    def route(self, to: IP, port: int, *, link: int | None = None) -> Route:
        own = next((n for n, _ in self._networks if n.ip == to), None)
        if own is not None and not to.is_loopback and link is None:
            return Route(to, 1)
        matching = [
            (interface, index)
            for interface, index in self._networks
            if to in interface.network and link in (None, index)
        ]
        if matching:
            return Route(matching[0][0].ip, matching[0][1])
        index = self._default.get(to.version)
        if index is None or to.is_link_local:
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        source = next(
            interface.ip
            for interface, i in self._networks
            if i == index and interface.version == to.version
        )
        return Route(source, index)

    def takes_files(self, directory: str) -> bool:
        return directory not in self.read_only
