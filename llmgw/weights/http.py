"""One connection to one server, and one range of one file over it.

Blocking, for a thread of the fetch process: `recv_into`, `pwrite` and SHA-256 all
let go of the interpreter, and so a few threads move what the kernel can move. An
event loop with h11 under it took three times the CPU for each byte
(docs/decisions/weights-transfer.md).
"""

import base64
import functools
import http.client
import os
import ssl
import string
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from msgspec import Struct

from llmgw import version
from llmgw.weights.answers import (
    Body,
    Meta,
    content_range,
    differs,
    length_of,
    meta_of,
    retry_after,
)
from llmgw.weights.faults import Again, Changed, Denied, NoRanges
from llmgw.weights.proxies import proxy_for
from llmgw.weights.sources import masked

CONNECT_TIMEOUT = 15.0
STALL_TIMEOUT = 30.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGAIN = frozenset(
    {408, 421, 425, 429, 500, 502, 503, 504, 507, 509, 520, 522, 523, 524}
)


class Access(Struct, frozen=True, kw_only=True):
    """How a server is spoken to. *token* goes to *token_host* and to nobody else."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    token: str | None = None
    token_host: str = ""


PUBLIC = Access()
_OF_A_MIRROR = "correct ca_file, cert_file and key_file of weights.mirrors"


class Client:
    """The connections of one thread. They are kept and used again."""

    def __init__(
        self, stall: float = STALL_TIMEOUT, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._stall = stall
        self._environ = environ
        self._open: dict[tuple[str, str, Access], http.client.HTTPConnection] = {}

    def probe(self, url: str, access: Access = PUBLIC) -> Meta:
        """Size, validator and final address of the file, for the price of one byte."""
        response, url = self._get(url, access, {"Range": "bytes=0-0"})
        meta = self._meta(response, url)
        if meta.ranges:
            # One byte, which may never come: what was asked is in the head.
            self._discard(response, url)
        else:
            self.drop(url)
            response.close()
        return meta

    def read(
        self, meta: Meta, start: int, end: int, access: Access = PUBLIC
    ) -> tuple[Body, str]:
        """Bytes *start* to *end* of the file that *meta* describes, and their address.

        Changed if it is another file by now, NoRanges if all of it comes.
        """
        headers = {
            "Range": f"bytes={start}-{end - 1}",
            "Want-Content-Digest": "sha-256=9",
        }
        if meta.validator is not None:
            headers["If-Range"] = meta.validator
        response, url = self._get(meta.url, access, headers)
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            self.drop(url)
            now = self._meta(response, url)
            response.close()
            if differs(meta, now):
                raise Changed
            raise NoRanges
        if differs(meta, self._meta(response, url)):
            self.drop(url)
            raise Changed
        first, last, _ = content_range(response.headers.get("Content-Range", ""))
        if (first, last) != (start, end - 1):
            self.drop(url)
            raise Again(f"bytes {start}-{end - 1} were asked, {first}-{last} came")
        return Body(response, start, end - start), url

    def read_all(self, meta: Meta, access: Access = PUBLIC) -> tuple[Body, str]:
        """The whole file, from a server that knows no ranges."""
        response, url = self._get(meta.url, access, {})
        if differs(meta, self._meta(response, url)):
            self.drop(url)
            raise Changed
        return Body(response, 0, length_of(response)), url

    def _meta(self, response: http.client.HTTPResponse, url: str) -> Meta:
        try:
            return meta_of(response, url)
        except Denied:
            self.drop(url)
            response.close()
            raise

    def text(self, url: str, access: Access, limit: int) -> bytes:
        """A small document, not longer than *limit*."""
        response, url = self._get(url, access, {})
        try:
            content = response.read(limit + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Again(f"the connection broke: {error}") from error
        finally:
            self.drop(url)
            response.close()
        if len(content) > limit:
            raise Denied(f"is longer than {limit} bytes")
        return content

    def done(self, body: Body) -> None:
        """The range was read to its end: the connection may serve the next."""
        body.close()

    def drop(self, url: str) -> None:
        """Close what leads to the server of *url*: what is still to come is lost."""
        parts = urlsplit(url)
        for key in [k for k in self._open if k[:2] == (parts.scheme, parts.netloc)]:
            self._open.pop(key).close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _get(
        self, url: str, access: Access, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, str]:
        linked = None
        for _ in range(10):
            response = self._ask(url, access, headers)
            # A hub says the digest in its redirect; where that leads nobody knows it.
            linked = linked or response.headers.get("X-Linked-ETag")
            if response.status not in _REDIRECTS:
                if linked and "X-Linked-ETag" not in response.headers:
                    response.headers["X-Linked-ETag"] = linked
                if response.status >= http.HTTPStatus.BAD_REQUEST:
                    self._refuse(response, url, access)
                encoding = response.headers.get("Content-Encoding", "identity")
                if encoding != "identity":
                    # It was not asked for, and its bytes are not those of the file.
                    self.drop(url)
                    raise Denied(f"the server sends it encoded as {encoding}")
                return response, url
            where = response.headers.get("Location")
            self._discard(response, url)
            if not where:
                raise Again("a redirect to nowhere")
            url = _redirected(url, where)
        raise Denied("redirects in circles")

    def _ask(
        self, url: str, access: Access, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        key = (parts.scheme, parts.netloc, access)
        reused = key in self._open
        while True:
            connection = self._open.get(key)
            if connection is None:
                connection = self._open[key] = self._connect(parts, access)
            try:
                connection.request(
                    "GET",
                    _target(parts, self._proxy(url)),
                    headers=self._headers(parts, access, url) | headers,
                )
                return connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self._open.pop(key).close()
                # A kept connection that the server closed meanwhile says nothing
                # about the server: once more on a new one.
                if reused and not isinstance(error, TimeoutError):
                    reused = False
                    continue
                raise Again(_why(error)) from error

    def _proxy(self, url: str) -> SplitResult | None:
        return proxy_for(url, self._environ)

    def _connect(
        self, parts: SplitResult, access: Access
    ) -> http.client.HTTPConnection:
        proxy = self._proxy(parts.geturl())
        # Of an IPv6 address without one the library takes the last part for the port.
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        to_host, to_port = (
            (proxy.hostname or "", proxy.port or 3128) if proxy else (host, port)
        )
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                to_host, to_port, timeout=CONNECT_TIMEOUT, context=_context(access)
            )
            if proxy:
                connection.set_tunnel(host, port, headers=_proxy_user(proxy))
        else:
            connection = http.client.HTTPConnection(
                to_host, to_port, timeout=CONNECT_TIMEOUT
            )
        try:
            connection.connect()
            connection.sock.settimeout(self._stall)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise Denied(
                f"its certificate is not trusted: {error.verify_message}",
                fix="the system's store or SSL_CERT_FILE must know its CA; "
                "a mirror has its own ca_file",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Again(_why(error)) from error
        except UnicodeError as error:  # of a name that a redirect had
            connection.close()
            raise Denied(f"leads to {host!r}, which is no name of a host") from error
        return connection

    def _headers(self, parts: SplitResult, access: Access, url: str) -> dict[str, str]:
        # No compression: ranges count the bytes of the file, not those of its gzip.
        headers = {
            "Accept-Encoding": "identity",
            "User-Agent": f"llmgw/{version()}",
            "Host": parts.netloc.rpartition("@")[2],
        }
        user = parts.netloc.rpartition("@")[0]
        if access.token and parts.netloc == access.token_host:
            headers["Authorization"] = f"Bearer {access.token}"
        elif user:
            headers["Authorization"] = _basic(unquote(user))
        proxy = self._proxy(url)
        if proxy and parts.scheme == "http":
            headers |= _proxy_user(proxy)
        return headers

    def _discard(self, response: http.client.HTTPResponse, url: str) -> None:
        """Read a short body away, so that the connection is kept."""
        if (response.length or 0) > 65536 or response.length is None:
            self.drop(url)
        else:
            try:
                response.read()
            except (OSError, http.client.HTTPException):
                self.drop(url)
        response.close()

    def _refuse(
        self, response: http.client.HTTPResponse, url: str, access: Access
    ) -> None:
        status, after = response.status, retry_after(response)
        what = f"the server answers {status} {response.reason}".rstrip()
        if status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return
        self._discard(response, url)
        if status in _AGAIN:
            raise Again(what, after=after)
        raise Denied(what, status=status, fix=_fix(status, url, access))


def _fix(status: int, url: str, access: Access) -> str:
    """What helps, by who was asked: only a hub takes a token."""
    if status in (404, 410):
        return "correct the address: by this name there is nothing"
    if status not in (401, 403):
        return ""
    if access.token_host:
        return "weights.hf_token_file must name a token that may read it"
    if access.cert_file:
        return "the cert_file of weights.mirrors must be one that may read it"
    if urlsplit(url).username:
        return "the user or the password in the address is not one that may read it"
    return "give the address with its user and password, https://user:password@host/…"


def _redirected(url: str, where: str) -> str:
    """The address that the answer of *url* sends to. Denied if it is none."""
    try:
        # What is not ASCII there was meant as the bytes it came as.
        where = quote(where.encode("latin-1"), safe=string.punctuation)
        there = urljoin(url, where)
        parts = urlsplit(there)
        is_one = (
            parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        )
    except ValueError:
        is_one, there = False, where
    if not is_one:
        raise Denied(f"redirects to {masked(there)!r}, which is no address")
    if url.startswith("https:") and not there.startswith("https:"):
        raise Denied(f"redirects from https:// to {masked(there)}")
    return there


def _target(parts: SplitResult, proxy: SplitResult | None) -> str:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # As a person writes it, with spaces and accents; what is quoted already stays so.
    path = quote(path, safe=string.punctuation)
    if proxy and parts.scheme == "http":
        return f"http://{parts.netloc.rpartition('@')[2]}{path}"
    return path


def _proxy_user(proxy: SplitResult) -> dict[str, str]:
    user = proxy.netloc.rpartition("@")[0]
    return {"Proxy-Authorization": _basic(unquote(user))} if user else {}


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def _context(access: Access) -> ssl.SSLContext:
    names = [n for n in (access.ca_file, access.cert_file, access.key_file) if n]
    try:
        stamps = tuple(Path(name).stat().st_mtime_ns for name in names)
    except OSError as error:
        raise Denied(
            f"its certificates cannot be read: {error}", fix=_OF_A_MIRROR
        ) from error
    return _loaded(access, stamps)


# Reading the system's store takes 20 ms, which eight connections would each pay. The
# times of change make a renewed certificate another entry.
@functools.lru_cache(maxsize=16)
def _loaded(access: Access, stamps: tuple[int, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file)
    except OSError as error:
        raise Denied(
            f"its certificates cannot be read: {error}", fix=_OF_A_MIRROR
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _why(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return f"the TLS handshake breaks: {reason}"
    said = error.strerror if isinstance(error, OSError) else ""
    return said or str(error) or type(error).__name__
