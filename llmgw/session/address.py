"""What of a control plane's address goes to the resolver, and what to the server."""

import base64
import ipaddress
import string
from urllib.parse import quote, unquote

from llmgw.config.address import Address, Complaint, masked, parse, unmapped
from llmgw.errors import Unreachable


def take_apart(server: str) -> Address:
    """Unreachable if it is no address: one that was learned may be anything."""
    address = parse(server)
    if isinstance(address, Complaint):
        raise Unreachable(address.what, where=masked(server), fix=address.fix)
    return address


def lookup_name(address: Address) -> str:
    """As the resolver wants it: the zone behind a plain %, nobody is this machine."""
    host = address.host or "localhost"
    return f"{host}%{address.zone}" if address.zone else host


def authority(address: Address) -> str:
    """For the Host header: IPv6 in brackets, and without its zone, which means nothing
    to anybody else.
    """
    host = address.host or "localhost"
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"


def credentials(address: Address) -> tuple[tuple[str, str], ...]:
    """Who has a name and a password in the address wants them sent."""
    if address.userinfo is None:
        return ()
    encoded = base64.b64encode(unquote(address.userinfo).encode()).decode()
    return (("authorization", f"Basic {encoded}"),)


def path(address: Address) -> str:
    """For the request line: what is not ASCII percent-encoded (RFC 3987, 3.1)."""
    return quote(address.path.rstrip("/"), safe=string.punctuation)


def plain(address: str) -> str:
    """An address as others know it: without zone, IPv4 as IPv4."""
    return str(unmapped(ipaddress.ip_address(address.partition("%")[0])))
