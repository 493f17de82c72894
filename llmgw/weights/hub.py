"""Which files a repository has, by huggingface_hub; the bytes are fetched by us.

Imported in the fetch process only: the library brings half a second and 20 MiB of
imports with it, and its own downloads resume within one process at best (T70).
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit

from msgspec import Struct

from llmgw.errors import WeightsError
from llmgw.weights import marker
from llmgw.weights.faults import Again, Denied
from llmgw.weights.http import Access
from llmgw.weights.proxies import proxy_for
from llmgw.weights.sources import GLOB, Hub, is_loopback

PUBLIC_ENDPOINT = "https://huggingface.co"
TIMEOUT = 20.0
LONGEST_NAME = 255  # bytes, on any file system that weights lie on


class Endpoint(Struct, frozen=True, kw_only=True):
    """A hub, and the token for it if there is one."""

    url: str
    token: str | None = None

    @property
    def access(self) -> Access:
        return Access(token=self.token, token_host=urlsplit(self.url).netloc)

    def file_url(self, source: Hub, commit: str, name: str) -> str:
        return f"{self.url}/{source.repo}/resolve/{commit}/{quote(name)}"


class Listed(Struct, frozen=True, kw_only=True):
    """One file of a repository. *blob* is git's id of a file that git itself keeps."""

    name: str
    size: int | None
    sha256: str | None
    blob: str | None


def endpoint(
    url: str | None, token_file: str | None, environ: Mapping[str, str]
) -> Endpoint:
    """The hub to ask. The token comes from a file, never from the environment."""
    base = (url or environ.get("HF_ENDPOINT") or PUBLIC_ENDPOINT).rstrip("/")
    token = _token(token_file, environ.get("CREDENTIALS_DIRECTORY"))
    parts = urlsplit(base)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        # Everybody on the way could read it.
        token = None
    return Endpoint(url=base, token=token)


def _token(file: str | None, credentials: str | None) -> str | None:
    path = Path(file) if file else None
    if path is None and credentials and (Path(credentials) / "hf-token").exists():
        path = Path(credentials) / "hf-token"
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WeightsError(
            "the token cannot be read",
            where=str(path),
            fix="weights.hf_token_file must name a file that this user can read",
        ) from error
    if not token or not token.isascii() or not token.isprintable():
        raise WeightsError(
            "holds no token", where=str(path), fix="write the token in it, and no more"
        )
    return token


def listing(source: Hub, hub: Endpoint) -> tuple[str, tuple[Listed, ...]]:
    """The commit, and the files that match. Again, or Denied with the reason."""
    if proxy_for(hub.url, os.environ) is None:
        # The library reads the same variables, but no networks in NO_PROXY.
        exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        exempt = f"{exempt},{urlsplit(hub.url).hostname}"
        os.environ |= {"NO_PROXY": exempt, "no_proxy": exempt}
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Here and not above: an optional library, and most fetches do without it.
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
        )
    except ImportError as error:
        raise Denied(
            "hf:// needs huggingface_hub, which is not installed",
            fix="pip install 'llmgw[hf]'",
        ) from error
    api = HfApi(endpoint=hub.url, token=hub.token or False)
    try:
        found = api.model_info(
            source.repo, revision=source.revision, files_metadata=True, timeout=TIMEOUT
        )
    except HFValidationError as error:
        # Before anything is asked: `name.git` is one.
        raise Denied(
            f"{source.repo} is no name on the hub",
            fix="write owner/name as the hub shows it, without .git",
        ) from error
    except GatedRepoError as error:
        raise Denied(
            "is gated: its owner wants to know who asks",
            status=403,
            fix="accept its terms on the hub, and set weights.hf_token_file",
        ) from error
    except HfHubHTTPError as error:
        raise _refused(source, error.response.status_code, error) from error
    except _transport_errors() as error:
        raise Again(
            f"the hub does not answer: {error or type(error).__name__}"
        ) from error
    return _matching(source, found)


def _refused(source: Hub, status: int, error: Exception) -> Again | Denied:
    if status in (401, 404):
        # The hub says the same of what is private and of what does not exist.
        return Denied(
            f"there is no {source.repo}@{source.revision}, or it is private",
            status=status,
            fix="check the name; for a private one set weights.hf_token_file",
        )
    if status == 429 or status >= 500:
        return Again(f"the hub answers {status}")
    return Denied(f"the hub answers {status}", status=status)


def _transport_errors() -> tuple[type[Exception], ...]:
    # The library has gone from requests to httpx and on to httpx2, and what it raises
    # when nobody answers with it.
    found: list[type[Exception]] = [OSError]
    for name in ("httpx", "httpx2"):
        module = sys.modules.get(name)
        if module is not None:
            found.append(cast(type[Exception], module.HTTPError))
    return tuple(found)


def _matching(source: Hub, found: Any) -> tuple[str, tuple[Listed, ...]]:
    listed: list[Listed] = []
    for file in found.siblings or ():
        lfs = file.lfs
        listed.append(
            Listed(
                name=file.rfilename,
                size=file.size if lfs is None else lfs.size,
                sha256=None if lfs is None else lfs.sha256,
                blob=file.blob_id if lfs is None else None,
            )
        )
    # A cache that somebody put on the hub as it lay: its marker is not ours.
    listed = [file for file in listed if not marker.is_own(file.name)]
    names = matching(source.pattern, [file.name for file in listed])
    if not names:
        raise Denied(
            f"has no file that matches {source.pattern!r}"
            if source.pattern
            else "has no files",
            fix=_nearby(source.pattern, [file.name for file in listed]),
        )
    return commit(found.sha), inside(
        tuple(file for file in listed if file.name in names)
    )


def commit(said: object) -> str:
    """What a hub or a mirror says a revision is; Denied if it is none. A folder is
    named after it.
    """
    if isinstance(said, str) and re.fullmatch(r"[0-9a-f]{40,64}", said):
        return said
    raise Denied(f"its commit is {said!r}, which is none")


def inside(listed: tuple[Listed, ...]) -> tuple[Listed, ...]:
    """*listed*; Denied if one would not lie below the folder that it is fetched into.

    Whoever answers as the hub or a mirror writes these names: `/etc/cron.d/x` was
    written to, as far as the agent's user may.
    """
    for file in listed:
        parts = file.name.split("/")
        if not file.name.isprintable() or not all(map(_is_a_name, parts)):
            raise Denied(f"lists a file called {file.name!r}, which no folder can have")
    return listed


def _is_a_name(part: str) -> bool:
    return part not in ("", ".", "..") and len(part.encode()) <= LONGEST_NAME


def matching(pattern: str, names: list[str]) -> set[str]:
    """The *names* a pattern means: all, a file, the files of a folder, or a glob."""
    if not pattern:
        return {name for name in names if not name.startswith(".")}
    if not GLOB & set(pattern):
        folder = pattern.rstrip("/") + "/"
        return {name for name in names if name == pattern or name.startswith(folder)}
    return {name for name in names if fnmatchcase(name, pattern)}


def _nearby(pattern: str, names: list[str]) -> str:
    ending = pattern.rpartition(".")[2]
    shown = [name for name in names if name.endswith(ending)] or names
    return f"it has {', '.join(sorted(shown)[:6])}" if shown else ""


def git_blob(path: Path, size: int) -> str:
    """Git's id of a file: the only digest the hub gives for what git itself keeps."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1024 * 1024):
            digest.update(chunk)
    return digest.hexdigest()
