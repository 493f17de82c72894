"""What a server answers, read: how long a file is, which version, and its bytes."""

import base64
import http.client
import re
import time

from msgspec import Struct

from llmgw.dates import http_date
from llmgw.weights.faults import Again, Denied

# Thirty digits: longer numbers are no lengths, and from some on Python reads none.
_NUMBER = r"[0-9]{1,30}"
_RANGE = re.compile(rf"bytes (?:({_NUMBER})-({_NUMBER})|\*)/({_NUMBER}|\*)")
# As far as an offset in a file goes.
LONGEST = 2**63 - 1


class Meta(Struct, frozen=True, kw_only=True):
    """What a server says of a file. *url* is where the bytes are, after redirects."""

    url: str
    size: int | None
    validator: str | None = None
    ranges: bool = True
    sha256: str | None = None


class Body:
    """The bytes of one answer, read in the order they come."""

    def __init__(
        self, response: http.client.HTTPResponse, start: int, length: int | None
    ) -> None:
        self._response = response
        self.start = start
        self.length = length
        self._left = length
        self.headers = response.headers
        self.is_framed = response.chunked or length is not None
        self.sha256 = _digest_in(response.headers.get("Content-Digest", ""))

    def close(self) -> None:
        """It was read to its end: the connection may serve the next."""
        self._response.close()

    def readinto(self, view: memoryview) -> int:
        """As many bytes as there are; 0 at the end. Again if it breaks."""
        try:
            if self._response.chunked:
                return self._response.readinto(view[:65536])
            if self._left is not None:
                # A kept connection goes on after the body: reading on would wait.
                view = view[: self._left]
            # One recv and no more: what has come is on disk before the next is awaited.
            count = self._response.fp.readinto1(view)
        except TimeoutError as error:
            raise Again("nothing came for too long") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Again(
                f"the connection broke: {error or type(error).__name__}"
            ) from error
        if self._left is not None:
            self._left -= count
        return count


def content_range(text: str) -> tuple[int | None, int | None, int | None]:
    """First byte, last byte and length of the whole; None for what is not said."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return None, None, None
    first, last, total = found.groups()
    return (
        int(first) if first else None,
        int(last) if last else None,
        int(total) if total != "*" else None,
    )


def meta_of(response: http.client.HTTPResponse, url: str) -> Meta:
    """What *response* says of the file. Denied if no file can be so long."""
    headers = response.headers
    ranged = response.status in (206, 416)
    size = length_of(response)
    if ranged:
        size = _possible(content_range(headers.get("Content-Range", ""))[2])
    etag = headers.get("ETag", "")
    # A weak ETag says that two files mean the same, not that their bytes do.
    strong = etag if etag.startswith('"') else headers.get("Last-Modified")
    return Meta(
        url=url,
        size=size,
        validator=strong,
        ranges=ranged,
        sha256=_said_sha256(headers),
    )


def differs(before: Meta, now: Meta) -> bool:
    if before.size is not None and now.size is not None and before.size != now.size:
        return True
    return (
        before.validator is not None
        and now.validator is not None
        and before.validator != now.validator
    )


def _said_sha256(headers: http.client.HTTPMessage) -> str | None:
    """The digest of the whole file, where the server gives one."""
    linked = headers.get("X-Linked-ETag", "").strip('"')
    if re.fullmatch(r"[0-9a-f]{64}", linked):
        return linked
    return _digest_in(headers.get("Repr-Digest", ""))


def _digest_in(field: str) -> str | None:
    """The SHA-256 in a digest field (RFC 9530), as hex."""
    found = re.search(r"sha-256=:([A-Za-z0-9+/=]+):", field)
    if found is None:
        return None
    try:
        return base64.b64decode(found[1], validate=True).hex()
    except ValueError:
        return None


def length_of(response: http.client.HTTPResponse) -> int | None:
    """How long the body is, if that is said. Denied if it is no length."""
    if response.chunked:
        return None
    said = response.headers.get("Content-Length")
    if said is not None and not re.fullmatch(_NUMBER, said.strip()):
        # Read as if nothing were said, an answer that was cut off would be whole.
        raise Denied(f"the server says that it is {said[:40]!r} bytes long")
    return _possible(response.length)


def _possible(size: int | None) -> int | None:
    if size is not None and size > LONGEST:
        raise Denied(f"the server says that it is {size} bytes long, as no file can be")
    return size


def retry_after(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    if re.fullmatch(_NUMBER, text):
        return float(text)
    when = http_date(text)
    if when is None:
        return None
    # Both by the server's clock: this machine's may be years off.
    now = http_date(response.headers.get("Date"))
    return max(0.0, when - (time.time() if now is None else now))
