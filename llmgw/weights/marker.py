"""What says that weights are whole: `llmgw-complete.json` beside them.

It is written last. A folder without it, or a file it does not name, is not taken for
whole. A cache served as it is over HTTPS is a mirror, and this is its list of files.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from llmgw import files

NAME = "llmgw-complete.json"


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file. *stamp* is its inode and time of change as it was published."""

    size: int
    sha256: str
    validator: str | None = None
    stamp: str = ""


class Marker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """*files* by path below this folder; *sources*: which of them each is."""

    files: dict[str, Entry] = {}
    sources: dict[str, tuple[str, ...]] = {}
    revision: str = ""


def is_own(name: str) -> bool:
    """Whether it is one of those that lie beside weights and say what they are."""
    last = name.rpartition("/")[2]
    return last == NAME or last.startswith(".llmgw-")


def read(folder: Path) -> Marker:
    """The marker of *folder*; an empty one if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Marker)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return Marker()


def write(folder: Path, marker: Marker) -> None:
    content = msgspec.json.format(msgspec.json.encode(marker, order="sorted"))
    files.replace(folder / NAME, content + b"\n", mode=0o644)


def stamp(path: Path) -> str:
    """Changes when somebody puts another file there, or writes to this one."""
    found = path.stat()
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def whole(
    folder: Path, source: str, sha256: str | None = None
) -> tuple[str, ...] | None:
    """The files of *source* in *folder*, if they are all there as they were published.

    None if not. Costs a stat for each: what was verified once is not read again.
    """
    marker = read(folder)
    names = marker.sources.get(source)
    if names is None:
        return None
    for name in names:
        entry = marker.files.get(name)
        if entry is None or not is_as_published(folder / name, entry):
            return None
    if sha256 is not None and [marker.files[n].sha256 for n in names] != [sha256]:
        return None
    return names


def is_as_published(path: Path, entry: Entry) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_size == entry.size
