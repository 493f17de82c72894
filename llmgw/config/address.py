"""One control plane's address, taken apart by our own rules and by no library's.

Libraries differ (one reads `10.1` as a host, another as 10.0.0.1), and the two ends of
a link that read an address differently is a fault nobody finds.
"""

import ipaddress
import re
import unicodedata
from urllib.parse import unquote

from msgspec import Struct

IP = ipaddress.IPv4Address | ipaddress.IPv6Address

_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
A_PORT = "write a port from 1 to 65535"
_SCHEME = re.compile(r"([^/?#]*?)://", re.DOTALL)


class Complaint(Struct, frozen=True):
    """Why a value is refused, or what is odd about it, and what to write instead."""

    what: str
    fix: str = ""


class Address(Struct, frozen=True, kw_only=True):
    """*text* is what is kept and dialled; the rest is what it means."""

    text: str
    secure: bool
    host: str
    port: int
    zone: str | None = None
    path: str = ""
    userinfo: str | None = None

    @property
    def ip(self) -> IP | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def key(self) -> object:
        """Equal for two spellings of one address."""
        host = str(self.ip or self.host.lower())
        path = self.path.rstrip("/")
        return (self.secure, self.userinfo, host, self.zone, self.port, path)

    @property
    def is_loopback(self) -> bool:
        """Whether it can only be this machine."""
        ip = self.ip
        if ip is None:
            name = self.host.lower().rstrip(".")
            return name in {"", "localhost"} or name.endswith(".localhost")
        ip = unmapped(ip)
        return ip.is_loopback or ip.is_unspecified

    @property
    def is_exposed(self) -> bool:
        """Whether others can read and change what is said on the way to it."""
        return not self.secure and not self.is_loopback


def unmapped(ip: IP) -> IP:
    """The IPv4 address inside an IPv4-mapped one; the rest as it is."""
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def quote(text: str) -> str:
    """In double quotes, on one line, with everything unprintable escaped."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def masked(address: str) -> str:
    """Without what may be a secret: a password, or a user name that stands alone."""
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    # The last @ of all: a password with a slash in it must not leak either.
    end = address.rfind("@")
    if end < start:
        return address
    user, colon, _ = address[start:end].partition(":")
    return address[:start] + (f"{user}:***" if colon else "***") + address[end:]


def shown(address: str) -> str:
    """Masked, and quoted if it is not plain text; ordinary ones stay as they are."""
    text = masked(address)
    return text if quote(text)[1:-1] == text else quote(text)


def with_scheme(address: str, secure: bool) -> str | Complaint:
    """The address with the scheme that TLS implies; looks at its front and no further.

    A scheme is read without regard to case and kept in lower case.
    """
    match = _SCHEME.match(address)
    if match is None:
        return ("https://" if secure else "http://") + address
    scheme, rest = match[1].lower(), address[match.end() :]
    if scheme == "https" and not secure:
        return Complaint(
            f"{shown(address)} is an https:// address but no tls certificates are "
            "configured",
            "set tls.cert_file, tls.key_file and tls.ca_file, or write http://",
        )
    if scheme == "http" and secure:
        return Complaint(
            f"tls is configured but {shown(address)} is an http:// address; use "
            "https://",
            f"write {shown('https://' + rest)}",
        )
    if scheme not in ("http", "https"):
        return Complaint(
            f"server {quote(masked(address))} must be an http:// or https:// address",
            f"write {shown(('https://' if secure else 'http://') + (rest or 'HOST'))}",
        )
    return f"{scheme}://{rest}"


def parse(text: str) -> Address | Complaint:
    """Take apart an address that has its scheme. The complaint names no key."""
    scheme, _, rest = text.partition("://")
    # Whoever was told of a server by another has not been through `with_scheme`.
    if scheme.lower() not in ("http", "https"):
        return Complaint("must be an http:// or https:// address", "write its scheme")
    secure = scheme.lower() == "https"
    complaint = _characters(rest) or _beyond_path(rest)
    if complaint is not None:
        return complaint
    authority, slash, path = rest.partition("/")
    userinfo, at, location = authority.rpartition("@")
    split = _split_port(location, secure)
    if isinstance(split, Complaint):
        return split
    bare, port = split
    host = _host(bare)
    if isinstance(host, Complaint):
        return host
    name, zone = host
    return Address(
        text=text,
        secure=secure,
        host=name,
        port=port,
        zone=zone,
        path=slash + path,
        userinfo=userinfo if at else None,
    )


def _characters(rest: str) -> Complaint | None:
    if not rest or rest == "/":
        return Complaint("has no host", "write HOST, HOST:PORT or [IPV6]:PORT")
    for char in rest:
        if char.isspace() or not char.isprintable():
            return Complaint(f"has the character {quote(char)} in it", "remove it")
    if "$" in rest:
        return Complaint("has a $ in it, and nothing is expanded", "write the value")
    for char in '\\<>"{}^`|':
        if char in rest:
            return Complaint(f"has the character {quote(char)} in it", "remove it")
    if _BAD_ESCAPE.search(rest.partition("]")[2] if rest[:1] == "[" else rest):
        return Complaint(
            "has a % that two hexadecimal digits do not follow", "write %25 for a %"
        )
    return None


def _beyond_path(rest: str) -> Complaint | None:
    for mark, what in (("#", "fragment"), ("?", "query")):
        if mark in rest:
            return Complaint(
                f"has a {what}; paths are appended to a server's address",
                f"leave out everything from the {mark} on",
            )
    authority, slash, path = rest.partition("/")
    if "," in authority:
        return Complaint("has a comma in it", 'servers is a list: ["a", "b"]')
    if "://" in path or path.startswith("/"):
        return Complaint(
            f"has a path that looks like an address: {quote(slash + path)}",
            "write one scheme, one host and one port",
        )
    if authority.lower() in ("http:", "https:"):
        return Complaint("has one slash after its scheme", f"write {authority}//HOST")
    return None


def _split_port(location: str, secure: bool) -> tuple[str, int] | Complaint:
    usual = 443 if secure else 80
    if location.startswith("["):
        bare, bracket, tail = location.partition("]")
        if not bracket:
            return Complaint("has a [ without its ]", "write [IPV6]:PORT")
        bare += bracket
        if tail and not tail.startswith(":"):
            return Complaint(
                f"has {quote(tail)} between the host and the port", "write [IPV6]:PORT"
            )
        port = tail[1:]
    else:
        if location.count(":") > 1:
            return _unbracketed(location)
        bare, _, port = location.partition(":")
        if "]" in bare or "[" in bare:
            return Complaint(
                "has a bracket out of place", "write HOST:PORT or [IPV6]:PORT"
            )
    if not port:
        if not location:
            return Complaint("has no host", "write HOST, HOST:PORT or [IPV6]:PORT")
        return bare, usual
    if not (port.isascii() and port.isdigit()):
        return Complaint(f"has a port that is no number: {quote(port)}", A_PORT)
    if len(port.lstrip("0")) > 5 or not 1 <= int(port) <= 65535:
        return Complaint(f"has the port {port}; ports are 1 to 65535", A_PORT)
    return bare, int(port)


def _unbracketed(location: str) -> Complaint:
    whole = f"[{location}]"
    head, _, tail = location.rpartition(":")
    fix = f"write {whole}"
    if tail.isdigit() and head.strip(":") and not head.endswith(":"):
        fix += f", or [{head}]:{tail} if {tail} is the port"
    return Complaint("is an IPv6 address without brackets", fix)


def _host(bare: str) -> tuple[str, str | None] | Complaint:
    """The host as it is looked up, and its zone."""
    if bare.startswith("["):
        return _ipv6(bare[1:-1])
    if not bare:
        return "", None  # `:8080` is this machine, by accident
    if re.search(r"%[0-7]", bare):
        return Complaint("has an escaped letter in its host", "write the letter itself")
    name = mapped_name(unquote(bare, errors="replace"))
    if name is None or not is_name(name):
        return Complaint(
            f"has a host that is neither a name nor an address: {quote(bare)}",
            "write HOST, HOST:PORT or [IPV6]:PORT",
        )
    # A lone 0 has always been looked up as a name; the other numbers never worked.
    numeric = all(_NUMBER.fullmatch(part) for part in name.rstrip(".").split("."))
    if numeric and name != "0":
        try:
            ip = ipaddress.IPv4Address(name)
        except ValueError:
            return Complaint(
                f"has a host that is no IPv4 address: {quote(bare)}",
                "write four numbers from 0 to 255 without leading zeros",
            )
        return _one_machine(ip) or (name, None)
    return name, None


def is_name(text: str) -> bool:
    """Whether a host may be called *text*, in ASCII."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def mapped_name(name: str) -> str | None:
    """In ASCII: an international name as `xn--`, full-width digits as digits."""
    if name.isascii():
        return name
    folded = unicodedata.normalize("NFKC", name).replace("。", ".").lower()
    try:
        return folded.encode("idna").decode("ascii")
    except UnicodeError:
        return None


def _ipv6(inside: str) -> tuple[str, str | None] | Complaint:
    literal, percent, zone = inside.partition("%")
    try:
        ip = ipaddress.IPv6Address(literal)
    except ValueError:
        what = "nothing" if not inside else quote(inside)
        return Complaint(
            f"has {what} between brackets; only IPv6 goes there",
            "write HOST:PORT or [IPV6]:PORT",
        )
    if percent and (not zone.startswith("25") or not zone[2:]):
        name = "" if zone.startswith("25") else zone
        return Complaint(
            "has a zone that is not written %25INTERFACE",
            f"write [{literal}%25{name or 'INTERFACE'}]",
        )
    if zone and not re.fullmatch(r"[A-Za-z0-9._~@:-]+", zone[2:], re.ASCII):
        return Complaint(
            f"has a zone that is no interface: {quote(zone[2:])}",
            f"write [{literal}%25INTERFACE]",
        )
    if ip.is_link_local and not zone:
        return Complaint(
            "is a link-local address without a zone", f"write [{literal}%25INTERFACE]"
        )
    return _one_machine(ip) or (literal.lower(), zone[2:] or None)


def _one_machine(ip: IP) -> Complaint | None:
    plain = unmapped(ip)
    if plain.is_multicast or (plain.version == 4 and plain.is_reserved):
        return Complaint(
            "is not the address of one machine: it is broadcast, multicast or reserved",
            "write the control plane's own address",
        )
    return None
