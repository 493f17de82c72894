"""Who may use the operator API: it starts programs on every node of the fleet.

Never for being near: any user of this machine, and any page in a browser on it, can
connect to loopback. What counts is one of three things that were given on purpose: the
right to open the unix socket, the token of a file that only its owner reads, or a
client certificate that was named as an operator's.
"""

import ipaddress
import secrets
import socket
from pathlib import Path

from aiohttp import web

from llmgw.control.files import read, write
from llmgw.control.plane import caller
from llmgw.control.refusals import refused
from llmgw.errors import LlmgwError


class Access:
    def __init__(self, token: bytes, operators: tuple[str, ...]) -> None:
        self._token = token
        self._operators = operators

    def require(self, request: web.Request) -> None:
        """Raises the refusal unless *request* comes from an operator."""
        assert request.transport is not None, "a request is answered while it is open"
        carrier = request.transport.get_extra_info("socket")
        if carrier.family == socket.AF_UNIX:
            return
        if caller(request) in self._operators:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        # As bytes: a header holds any, and comes with surrogates for what is no UTF-8.
        sent = token.strip().encode(errors="surrogateescape")
        if scheme.lower() == "bearer" and secrets.compare_digest(sent, self._token):
            if request.secure or _is_loopback(request):
                return
            raise refused(
                "not_allowed",
                "the token was sent over a network without TLS; make a new one, and "
                "use TLS or ask on this machine",
            )
        raise refused(
            "not_allowed",
            "use the control plane's unix socket, `Authorization: Bearer` with its "
            "token, or a certificate named with --operator",
        )


def _is_loopback(request: web.Request) -> bool:
    address = ipaddress.ip_address((request.remote or "").partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def token_in(file: Path) -> bytes:
    """The token in *file*; a new one is made if there is no such file."""
    content = read(file)
    if content is None:
        token = secrets.token_urlsafe(32).encode()
        write(file, token + b"\n")
        return token
    token = content.strip()
    if len(token) < 16:
        raise _unusable(file, "holds no token of at least 16 characters")
    # A key, or text as UTF-16, which no operator could ever send.
    if any(byte <= 32 or byte == 127 for byte in token):
        raise _unusable(file, "holds more than one word, or what no header can carry")
    return token


def _unusable(file: Path, what: str) -> LlmgwError:
    fix = "remove it, and a good one is made at the next start"
    return LlmgwError(what, where=str(file), fix=fix)
