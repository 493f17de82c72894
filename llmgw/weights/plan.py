"""What one source comes to: which files, from where, and the folder that is theirs."""

import logging
import os
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights import hub, marker
from llmgw.weights.faults import Again, Denied
from llmgw.weights.file import Wanted
from llmgw.weights.http import PUBLIC, Access, Client
from llmgw.weights.origin import OnDisk, Origin, Server
from llmgw.weights.sources import Hub, Local, Source, Web, file_name, masked, place
from llmgw.weights.waiting import Rest, patiently

log = logging.getLogger(__name__)

# The list of files of a repository; the largest known have some thousand.
LONGEST_LIST = 16 * 1024 * 1024


class Plan(Struct, frozen=True, kw_only=True):
    """*folder* below the cache; *name* is the source as the marker there knows it.

    *moving*: the revision that was asked for, where that is not a commit.
    """

    folder: PurePosixPath
    name: str
    files: tuple[Wanted, ...]
    moving: str = ""


class Planner:
    """Asks mirrors and the hub. *rest* waits between attempts, and may raise."""

    def __init__(self, settings: keys.Weights, rest: Rest, client: Client) -> None:
        self._settings = settings
        self._rest = rest
        self._client = client
        self._mirrors = tuple(
            (mirror.url.rstrip("/"), access_of(mirror)) for mirror in settings.mirrors
        )

    def plan(self, source: Source, sha256: str | None) -> Plan:
        """What to fetch. WeightsError says why nothing can be."""
        match source:
            case Hub():
                return self._hub(source, sha256)
            case Web():
                return self._web(source, sha256)
            case Local():
                return _local(source, sha256)

    def _web(self, source: Web, sha256: str | None) -> Plan:
        name = file_name(source)
        folder = place(source, sha256)
        # A mirror may have fetched it without knowing the digest.
        folders = dict.fromkeys((folder, place(source, None)))
        origins: list[Origin] = [
            Server(_below(base, below / name), access)
            for base, access in self._mirrors
            for below in folders
        ]
        origins.append(Server(source.url, PUBLIC))
        wanted = Wanted(name=name, origins=tuple(origins), sha256=sha256)
        return Plan(folder=folder, name=masked(source.url), files=(wanted,))

    def _hub(self, source: Hub, sha256: str | None) -> Plan:
        found = [
            (base, access, *listed)
            for base, access in self._mirrors
            if (listed := self._mirrored(source, base, access)) is not None
        ]
        if found:
            commit, listed = found[0][2:]
        else:
            commit, listed = self._from_hub(source)
        if sha256 is not None and len(listed) > 1:
            raise WeightsError(
                f"a digest is of one file, and {len(listed)} match",
                where=name_of(source, source.revision),
            )
        at = hub.endpoint(
            self._settings.hf_endpoint, self._settings.hf_token_file, os.environ
        )
        folder = place(source, None, commit)
        files: list[Wanted] = []
        for file in listed:
            origins: list[Origin] = [
                Server(_below(base, folder / file.name), access)
                for base, access, theirs, names in found
                if theirs == commit and file.name in {n.name for n in names}
            ]
            origins.append(Server(at.file_url(source, commit, file.name), at.access))
            files.append(
                Wanted(
                    name=file.name,
                    origins=tuple(origins),
                    size=file.size,
                    sha256=file.sha256 if sha256 is None else sha256,
                    blob=file.blob,
                )
            )
        return Plan(
            folder=folder,
            name=name_of(source, commit),
            files=tuple(files),
            moving="" if source.is_pinned else source.revision,
        )

    def _from_hub(self, source: Hub) -> tuple[str, tuple[hub.Listed, ...]]:
        at = hub.endpoint(
            self._settings.hf_endpoint, self._settings.hf_token_file, os.environ
        )
        where = name_of(source, source.revision)
        try:
            return patiently(lambda: hub.listing(source, at), self._rest)
        except Again as error:
            raise WeightsError(error.what, where=where, final=False) from error
        except Denied as error:
            raise WeightsError(error.what, where=where, fix=error.fix) from error

    def _mirrored(
        self, source: Hub, base: str, access: Access
    ) -> tuple[str, tuple[hub.Listed, ...]] | None:
        """The commit and the files of *source* that a mirror has whole."""
        try:
            commit = source.revision
            if not source.is_pinned:
                url = _below(base, refs(source) / source.revision)
                commit = hub.commit(self._text(url, access, 200).decode().strip())
            url = _below(base, place(source, None, commit) / marker.NAME)
            raw = self._text(url, access, LONGEST_LIST)
            theirs = msgspec.json.decode(raw, type=marker.Marker)
        except (Again, Denied, ValueError, msgspec.DecodeError):
            return None  # it has not got it, or is away: the next one is asked
        whole = theirs.sources.get(name_of(source, commit))
        if whole is None:
            everything = theirs.sources.get(name_of(source, commit, pattern=""), ())
            whole = tuple(hub.matching(source.pattern, list(everything)))
        listed = tuple(
            hub.Listed(name=name, size=entry.size, sha256=entry.sha256, blob=None)
            for name, entry in theirs.files.items()
            if name in whole and not marker.is_own(name)
        )
        try:
            return (commit, hub.inside(listed)) if listed else None
        except Denied as error:
            log.warning("mirror passed over url=%s why=%s", masked(base), error)
            return None

    def _text(self, url: str, access: Access, limit: int) -> bytes:
        return patiently(
            lambda: self._client.text(url, access, limit), self._rest, attempts=2
        )


def access_of(mirror: keys.Mirror) -> Access:
    return Access(
        ca_file=mirror.ca_file, cert_file=mirror.cert_file, key_file=mirror.key_file
    )


def name_of(source: Hub, revision: str, pattern: str | None = None) -> str:
    """One spelling for each source: `hf://o/n` and `hf://o/n@main/` are the same."""
    wanted = source.pattern if pattern is None else pattern
    return f"hf://{source.repo}@{revision}" + (f"/{wanted}" if wanted else "")


def refs(source: Hub) -> PurePosixPath:
    """Where it is kept which commit a revision was when it was fetched."""
    return PurePosixPath("hf", source.owner, source.name, "refs")


def _below(base: str, path: PurePosixPath) -> str:
    parts = urlsplit(base)
    return parts._replace(path=parts.path.rstrip("/") + "/" + quote(str(path))).geturl()


def _local(source: Local, sha256: str | None) -> Plan:
    path = Path(source.path)
    folder = place(source, sha256)
    name = f"file://{source.path}"
    if not path.is_dir():
        wanted = Wanted(name=file_name(source), origins=(OnDisk(path),), sha256=sha256)
        return Plan(folder=folder, name=name, files=(wanted,))
    if sha256 is not None:
        raise WeightsError("a digest is of one file, and this is a folder", where=name)
    inside = sorted(p for p in path.rglob("*") if p.is_file() and p.name != marker.NAME)
    if not inside:
        raise WeightsError("holds no files", where=name)
    files = [
        Wanted(
            name=str(p.relative_to(path)), origins=(OnDisk(p),), about=p.stat().st_size
        )
        for p in inside
    ]
    return Plan(folder=folder, name=name, files=tuple(files))
