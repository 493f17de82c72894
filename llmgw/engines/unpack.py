"""Unpack an archive that came from elsewhere: tar, zip or wheel, all in one way.

Nothing lands outside of the folder, no link leads out of it, nothing runs with
another's rights, and a small file does not become a full disk.
"""

import errno
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from msgspec import Struct

from llmgw.errors import EngineError

CHUNK = 1 << 20
# No link's target is longer. Of a file that says it is one, all of it would be read.
LONGEST_TARGET = 4096

# A folder that is a file as well, a link to itself: not the disk's fault.
_CONTRADICTIONS = {
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
}

# Each way of packing has its own. One that is not caught ends more than this build.
_DAMAGES = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    UnicodeError,  # in a name
)


class Cap(Struct, frozen=True, kw_only=True):
    """How large an archive may become."""

    size: int = 16 << 30
    entries: int = 250_000


class _Entry(Struct, frozen=True, kw_only=True):
    name: str
    kind: Literal["folder", "file", "symlink", "hardlink", "other"]
    mode: int
    target: str = ""
    content: Callable[[], IO[bytes] | None]


def unpack(archive: Path, into: Path, *, cap: Cap | None = None) -> None:
    """Unpack *archive* below *into*, an empty folder; EngineError says what is wrong.

    What was unpacked before the fault stays: *into* is the caller's to remove. A disk
    that is full or read-only is an OSError.
    """
    try:
        _unpack(archive, into, cap or Cap())
    except _DAMAGES as error:
        raise _bad(archive, f"is damaged: {error}") from error
    except NotImplementedError as error:
        raise _bad(archive, f"is packed in an unknown way: {error}") from error
    except RuntimeError as error:  # a loop of links on the way to a file
        raise _bad(archive, f"contradicts itself: {error}") from error
    except OSError as error:
        if error.errno is None:  # bz2 and gzip say so of what they read
            raise _bad(archive, f"is damaged: {error}") from error
        if error.errno not in _CONTRADICTIONS:
            raise
        raise _bad(archive, f"contradicts itself: {error.strerror}") from error


def _unpack(archive: Path, into: Path, cap: Cap) -> None:
    left = cap.size
    links: list[Path] = []
    with ExitStack() as opened:
        for number, entry in enumerate(_entries(archive, opened), 1):
            if number > cap.entries:
                raise _bad(archive, f"has more than {cap.entries} entries")
            left = _write(entry, into, left, archive)
            if left < 0:
                raise _bad(archive, f"becomes more than {cap.size} bytes")
            if entry.kind == "symlink":
                links.append(into / entry.name)
    for link in links:
        if not _resolves_inside(link, into):
            raise _bad(archive, f"has a link that leads out: {link.relative_to(into)}")


def _bad(archive: Path, what: str) -> EngineError:
    return EngineError(f"the archive {what}", where=str(archive))


def _resolves_inside(link: Path, into: Path) -> bool:
    """Only when all links are there can it be said where one leads through others."""
    try:
        try:
            there = link.resolve(strict=True)
        except FileNotFoundError:
            there = link.resolve()
    except (OSError, RuntimeError):  # a loop of links: from 3.13 on only strict says so
        return False
    return there.is_relative_to(into.resolve())


def _entries(archive: Path, opened: ExitStack) -> Iterator[_Entry]:
    if zipfile.is_zipfile(archive):
        yield from _of_zip(opened.enter_context(zipfile.ZipFile(archive)))
        return
    try:
        tar = opened.enter_context(tarfile.open(archive))  # noqa: SIM115 -- it is
    except tarfile.ReadError as error:
        raise EngineError(
            "the archive is no tar, zip or wheel",
            where=str(archive),
            fix="the address must be that of the archive, not of a page about it",
        ) from error
    yield from _of_tar(tar)


def _of_tar(tar: tarfile.TarFile) -> Iterator[_Entry]:
    for member in tar:
        kind = "other"
        if member.isdir():
            kind = "folder"
        elif member.isreg():
            kind = "file"
        elif member.issym():
            kind = "symlink"
        elif member.islnk():
            kind = "hardlink"
        yield _Entry(
            name=member.name,
            kind=kind,
            mode=member.mode,
            target=member.linkname,
            content=lambda member=member: tar.extractfile(member),
        )


def _of_zip(archive: zipfile.ZipFile) -> Iterator[_Entry]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        kind, target = "file", ""
        if info.filename.endswith("/"):  # is_dir() looks for the end of no name, too
            kind = "folder"
        elif stat.S_ISLNK(mode):
            with archive.open(info) as link:
                target = link.read(LONGEST_TARGET).decode(errors="replace")
            kind = "symlink"
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            kind = "other"
        yield _Entry(
            name=info.filename,
            kind=kind,
            mode=stat.S_IMODE(mode),
            target=target,
            content=lambda info=info: archive.open(info),
        )


def _write(entry: _Entry, into: Path, left: int, archive: Path) -> int:
    """Write one entry; how many of *left* bytes are left."""
    inside = _inside(entry.name)
    if inside is None:
        raise _bad(archive, f"would write outside of its folder: {entry.name}")
    if entry.mode & (stat.S_ISUID | stat.S_ISGID):
        raise _bad(archive, f"has a setuid or setgid file: {entry.name}")
    if entry.kind == "folder" and inside == PurePosixPath():
        return left  # `tar -C build .` begins with the folder itself
    path = into / inside
    # An earlier entry may have made a link of any part of the way.
    if not path.parent.resolve().is_relative_to(into.resolve()):
        raise _bad(archive, f"would write through a link: {entry.name}")
    if entry.kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return left
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        raise _bad(archive, f"has {entry.name} twice")
    if entry.kind == "file":
        return _copy(entry, path, left)
    if entry.kind == "other":
        raise _bad(archive, f"has something that is no file: {entry.name}")
    if not _link(entry, path, inside, into):
        raise _bad(archive, f"has a link that leads out: {entry.name}")
    return left


def _link(entry: _Entry, path: Path, inside: PurePosixPath, into: Path) -> bool:
    """Make a link; False if it would lead out."""
    if entry.kind == "symlink":
        if _inside(str(inside.parent / entry.target)) is None:
            return False
        path.symlink_to(entry.target)
        return True
    target = _inside(entry.target)
    if target is None or not _resolves_inside(into / target, into):
        return False
    file = (into / target).resolve()
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a hard link to a folder")
    path.hardlink_to(file)
    return True


def _copy(entry: _Entry, path: Path, left: int) -> int:
    """Counts what comes out, for what an archive says of its sizes can be a lie."""
    source = entry.content()
    assert source is not None, "a file has a content"
    with source, path.open("xb") as file:
        while left >= 0 and (chunk := source.read(CHUNK)):
            left -= len(chunk)
            file.write(chunk)
    path.chmod(0o755 if entry.mode & 0o111 else 0o644)
    return left


def _inside(name: str) -> PurePosixPath | None:
    """*name* as a path below the folder; None if it leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or "\0" in name:
        return None
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            return None
    return PurePosixPath(*parts)


def remove(folder: Path) -> None:
    """Remove *folder* and what is below it, as far as it can be."""
    shutil.rmtree(folder, ignore_errors=True)
