"""A control plane's address, taken apart once and put together in one place."""

import ipaddress
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from llmgw.errors import Unreachable


class Address(Struct, frozen=True):
    """*host* as the resolver wants it: no brackets, a zone behind a plain `%`."""

    url: str
    tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """For the Host header: an IPv6 address in brackets and without its zone, which
        means nothing to anybody else.
        """
        host = self.host.partition("%")[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def server_name(self) -> str:
        return self.host.partition("%")[0]


def parse(url: str) -> Address:
    """Unreachable if it is no address: one that was learned may be anything."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Unreachable(f"is no address: {error}", where=url) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unreachable("is no http:// or https:// address", where=url)
    tls = parts.scheme == "https"
    if port is None:
        port = 443 if tls else 80
    return Address(url, tls, unquote(parts.hostname), port, parts.path.rstrip("/"))


def plain(address: str) -> str:
    """An address as others know it: without zone, IPv4 as IPv4."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(found)
