"""What the text of a key must look like, by the kind that keys.py gives it."""

import ipaddress
import re
from collections.abc import Callable

from llmgw.config.address import (
    A_PORT,
    Complaint,
    masked,
    parse,
    quote,
    shown,
    unmapped,
    with_scheme,
)

Check = Callable[[str], Complaint | None]

_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", re.ASCII)


def path(text: str) -> Complaint | None:
    if text.startswith("~") or re.search(r"\$[A-Za-z_{(]", text):
        return Complaint(
            f"{quote(text)} is not an absolute path; nothing is expanded",
            "write the whole path",
        )
    return _plain(text)


def name(text: str) -> Complaint | None:
    if text != text.strip():
        return Complaint(f"{quote(text)} has white space around it", "remove it")
    return _plain(text)


def label(text: str) -> Complaint | None:
    return _plain(text)


def env(text: str) -> Complaint | None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text, re.ASCII):
        return Complaint(
            f"{quote(text)} is no name of an environment variable",
            "write letters, digits and _, and no digit first",
        )
    return None


def mgmt_addr(text: str) -> Complaint | None:
    """An IP address in strict form, or a host name."""
    try:
        ip = unmapped(ipaddress.ip_address(text))
    except ValueError:
        return _host(text)
    if ip.is_unspecified or ip.is_multicast or (ip.version == 4 and ip.is_reserved):
        return Complaint(
            f"{quote(text)} is not the address of one machine",
            "write the address other machines reach this one on, or leave it out",
        )
    return None


def _host(text: str) -> Complaint | None:
    fix = "write 10.20.0.5, fd20::5 or a host name"
    if "/" in text:
        fix = f"write it without the prefix length: {shown(text.partition('/')[0])}"
    elif text.startswith("["):
        fix = f"write it without brackets: {shown(text.strip('[]').partition(']')[0])}"
    elif re.fullmatch(r"[^:\s]+:[0-9]+", text):
        fix = f"write it without the port: {text.partition(':')[0]}"
    numbers = all(part.isdigit() for part in text.strip(".").split("."))
    if numbers or len(text) > 253 or not _HOST.fullmatch(text):
        return Complaint(f"{quote(text)} is neither an IP address nor a host name", fix)
    return None


def url(text: str) -> Complaint | None:
    scheme = text.partition("://")[0].lower()
    if "://" not in text or scheme not in ("http", "https"):
        rest = text.partition("://")[2] or text
        return Complaint(
            f"{quote(masked(text))} must be an http:// or https:// address",
            f"write {shown('https://' + rest)}, or http:// if it speaks no TLS",
        )
    complete = with_scheme(text, scheme == "https")
    found = parse(complete) if isinstance(complete, str) else complete
    if isinstance(found, Complaint):
        return Complaint(f"{quote(masked(text))} {found.what}", found.fix)
    return None


def listen(text: str) -> Complaint | None:
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not port.isdigit():
        return Complaint(f"{quote(text)} is not HOST:PORT", "write 127.0.0.1:9464")
    if not is_port or int(port) > 65535:
        what = f"{quote(text)} has the port {port}; ports are 1 to 65535"
        return Complaint(what, A_PORT)
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            what = f"{quote(host)} is no IPv6 address"
            return Complaint(what, "write [::1]:9464")
        return None
    if host and not _HOST.fullmatch(host):
        return Complaint(
            f"{quote(host)} is neither an address nor a host name",
            "an IPv6 address goes in brackets: [::1]:9464",
        )
    return None


def port_range(text: str) -> Complaint | None:
    first, _, last = text.partition("-")
    if int(last) < int(first):
        what = f"{quote(text)} ends before it begins"
        return Complaint(what, f"write {last}-{first}")
    if not 1 <= int(first) <= int(last) <= 65535:
        return Complaint(
            f"{quote(text)} is no range of ports from 1 to 65535",
            "write the first and the last, as in 20000-29999",
        )
    return None


def quiet_hours(text: str) -> Complaint | None:
    if any(int(time[:2]) > 23 for time in text.split("-")):
        what = f"{quote(text)} has an hour after 23"
        return Complaint(what, "write midnight as 00:00")
    first, _, last = text.partition("-")
    if first == last:
        what = f"{quote(text)} is no part of the day"
        return Complaint(what, "write where it begins and where it ends, or remove it")
    return None


def _plain(text: str) -> Complaint | None:
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        return Complaint(f"{quote(text)} has a control character in it", "remove it")
    return None


def odd_path(text: str) -> Complaint | None:
    if not text.startswith("/"):
        return Complaint(
            f"{quote(text)} is relative to wherever the agent is started",
            "write an absolute path",
        )
    if ".." in text.split("/"):
        return Complaint(
            f"{quote(text)} has .. in it, which is not resolved: it may pass through a "
            "link"
        )
    if "," in text:
        return Complaint(
            f"{quote(text)} is one path with a comma in it",
            'if two are meant, write ["/a", "/b"]',
        )
    return None


def odd_mgmt_addr(text: str) -> Complaint | None:
    try:
        ip = unmapped(ipaddress.ip_address(text))
    except ValueError:
        return None
    if ip.is_link_local:
        return Complaint(f"{text} is link-local: it is good on one network only")
    if ip.is_loopback:
        return Complaint(
            f"{text} is loopback: engines here cannot be reached from another machine",
            "set mgmt_addr to the address others reach this machine on",
        )
    return None


REFUSED: dict[str, Check] = {
    "path": path,
    "name": name,
    "label": label,
    "env": env,
    "mgmt_addr": mgmt_addr,
    "url": url,
    "listen": listen,
    "port_range": port_range,
    "quiet_hours": quiet_hours,
}
ODD: dict[str, Check] = {"path": odd_path, "mgmt_addr": odd_mgmt_addr}
