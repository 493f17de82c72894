"""What a source names, and where below the cache it lands.

    hf://owner/name[@revision][/path or glob]      a repository on the hub
    https://host/path                              one file
    http://host/path                               loopback, or with a digest
    file:///path                                   a file or a folder

The place in the cache spells the source, so that a cache served over HTTPS is a
mirror as it stands: hf/owner/name/COMMIT/…, https/host/path/…,
http/host_port/path/….
"""

import hashlib
import ipaddress
import re
from pathlib import PurePosixPath
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from msgspec import Struct

from llmgw.config.address import is_name
from llmgw.errors import WeightsError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
GLOB = frozenset("*?[")

# Of these a source may be, for whoever wrote another.
KINDS = (
    "hf://owner/name, https://host/path, http://host/path with a digest, "
    "or file:///path"
)


class Hub(Struct, frozen=True, kw_only=True):
    """Files of one repository; *pattern* "" is all of them."""

    owner: str
    name: str
    revision: str = "main"
    pattern: str = ""

    @property
    def repo(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision names one commit for ever."""
        return re.fullmatch(r"[0-9a-f]{40}", self.revision) is not None


class Web(Struct, frozen=True, kw_only=True):
    """One file behind a URL."""

    url: str


class Local(Struct, frozen=True, kw_only=True):
    """A file or a folder that this machine sees."""

    path: str


Source = Hub | Web | Local


def parse(text: str, digest: str | None = None) -> Source:
    """What *text* names. WeightsError, final, if it is no source."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    text = scheme + text[len(scheme) :]
    if not text.isprintable() or not rest:
        raise WeightsError(
            "is not a source",
            where=masked(text) or '""',
            fix=f"write file://{text}" if text.startswith("/") else f"write {KINDS}",
        )
    match scheme:
        case "hf":
            return _hub(text, rest)
        case "https" | "http":
            return _web(text, digest)
        case "file":
            return _local(text)
        case _:
            raise WeightsError(
                f"{scheme}:// is not known here",
                where=masked(text),
                fix=f"write {KINDS}",
            )


def _hub(text: str, rest: str) -> Hub:
    owner, _, rest = rest.partition("/")
    name, _, pattern = rest.partition("/")
    name, at, revision = name.partition("@")
    if at and not pattern.strip("/"):
        pattern = ""
    ok = all(
        _NAME.fullmatch(part) for part in (owner, name, *([revision] if at else []))
    )
    if not ok or ".." in pattern.split("/") or pattern.startswith("/"):
        raise WeightsError(
            "is not hf://owner/name[@revision][/path or glob]",
            where=text,
            fix="write it as the hub shows it; a branch with a slash in its name can "
            "be given as its commit",
        )
    return Hub(owner=owner, name=name, revision=revision or "main", pattern=pattern)


def _web(text: str, digest: str | None) -> Web:
    parts = _split(text)
    if parts.hostname is None or parts.path.endswith("/") or not parts.path:
        raise WeightsError(
            "names no file", where=masked(text), fix="write the address of one file"
        )
    if parts.scheme == "http" and digest is None and not is_loopback(parts.hostname):
        # Whoever is on the way can change what plain HTTP carries. With a digest
        # that is noticed; without one nobody would know.
        raise WeightsError(
            "is plain http:// without a digest",
            where=masked(text),
            fix="use https://, or give the file's sha256 (`pull --digest`)",
        )
    return Web(url=text)


def _local(text: str) -> Local:
    parts = _split(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise WeightsError(
            "names no path on this machine", where=text, fix="write file:///path"
        )
    path = unquote(parts.path)
    if "\0" in path:
        raise WeightsError("has %00 in it, as no path has", where=text)
    return Local(path=path)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # a port that is no number is only noticed when asked for
        if parts.hostname:
            _check_host(parts.hostname)
    except ValueError as error:
        raise WeightsError(
            "is no address",
            where=masked(text),
            fix="a port is a number up to 65535, IPv6 stands in brackets, and a name "
            "of other characters than a-z is written as xn--…",
        ) from error
    return parts


def _check_host(host: str) -> None:
    """ValueError for what is neither a name nor an address.

    What asks for it fails over it in ways of its own, and took every other fetch of
    the node with it: `a..b` is one that Python cannot look up.
    """
    if ":" in host:
        ipaddress.ip_address(host)
    elif not is_name(host):
        raise ValueError(host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def sha256_of(digest: str | None, where: str) -> str | None:
    """The 64 hex digits of `sha256:…`; WeightsError, final, if it is something else."""
    if digest is None:
        return None
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise WeightsError(
            f"{digest!r} is no sha256", where=where, fix="64 hex digits, as sha256:…"
        )
    return found[1].lower()


def masked(text: str) -> str:
    """*text* without what might be a secret: user, password, query and fragment.

    A signed URL is a password for an hour, and logs are kept for longer.
    """
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("http", "https"):
        return text
    authority, slash, path = rest.partition("/")
    path, query, _ = path.partition("?")
    hidden = "?…" if query else ""
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path.partition('#')[0]}{hidden}"


def place(source: Source, sha256: str | None, commit: str = "") -> PurePosixPath:
    """The folder below the cache that is this source's own."""
    match source:
        case Hub(owner=owner, name=name):
            return PurePosixPath("hf", owner, name, commit)
        case Web(url=url):
            parts = urlsplit(url)
            folder = _folder(parts.path)
            host = parts.netloc.rpartition("@")[2].replace(":", "_")
            extra = _short(parts.query) if parts.query else ""
            # The same address with another digest is another file: the one that is
            # there may be mapped by an engine, and is not replaced under it.
            wanted = f"sha256-{sha256[:16]}" if sha256 else ""
            return PurePosixPath(parts.scheme, host, *folder, extra, wanted)
        case Local(path=path):
            wanted = f"sha256-{sha256[:16]}" if sha256 else ""
            return PurePosixPath("file", *_folder(path), wanted)


def file_name(source: Web | Local) -> str:
    path = urlsplit(source.url).path if isinstance(source, Web) else source.path
    return _segments(path)[-1]


def _folder(path: str) -> tuple[str, ...]:
    # The file lies in a folder of its own name: its marker is not its neighbours'.
    return _segments(path)


def _segments(path: str) -> tuple[str, ...]:
    """Names that mean nothing to a file system but themselves."""
    names: list[str] = []
    for part in path.split("/"):
        name = quote(unquote(part), safe=" +=,@~!()[]{}&'")
        if name in ("", ".", ".."):
            continue
        # A name longer than a file system takes keeps its end: it says what it is.
        names.append(name if len(name) <= 200 else f"{_short(name)}-{name[-150:]}")
    if not names:
        raise WeightsError("names no file", where=path)
    return tuple(names)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_user(url: str) -> tuple[str, str | None]:
    """The URL to ask, and `user:password` for the header it belongs in."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    plain = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    return plain, unquote(user) if user else None
