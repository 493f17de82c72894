"""The folder that weights are fetched into, what lies complete in it, and what may go.

Nothing leaves that a replica uses, a process has open or a person pinned; nothing
outside the cache is ever touched; and nothing goes at all unless it is allowed
(`weights.cache_limit`) or a person says so.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from llmgw import files
from llmgw.errors import WeightsError
from llmgw.supervisor.procfs import open_below
from llmgw.weights import marker
from llmgw.weights.parts import WORK

OPEN = "a process has it open"
PIN = ".llmgw-pinned"
USED = ".llmgw-used"
# Said again by then, as long as the agent runs.
HOLD_EVERY = 24 * 3600.0
# What a node holds it says again now and then. One that is gone for good does not,
# and must not keep a shared cache full for ever.
HOLD_LASTS = 30 * 24 * 3600.0


class Held(Struct, frozen=True, kw_only=True):
    """What the replicas of one node use, as the markers name it."""

    sources: tuple[str, ...]


class Item(Struct, frozen=True, kw_only=True):
    """Weights that lie complete. *used_s_ago* by the file system's own clock."""

    folder: str
    sources: tuple[str, ...]
    size: int
    files: int
    used_s_ago: float
    pinned: bool
    in_use: str = ""


class Cache:
    """What lies complete below *root*."""

    def __init__(
        self, root: Path, *, open_files: Callable[[Path], set[str]] | None = None
    ) -> None:
        self.root = root
        self._open_files = open_files or open_below

    def items(self) -> list[Item]:
        """The least recently used first."""
        now = self._now()
        held = self._held(now)
        opened = self._open_files(self.root)
        found: list[Item] = []
        for folder in self._folders():
            known = marker.read(folder)
            below = str(folder.relative_to(self.root))
            reason = "a replica uses it" if held & set(known.sources) else ""
            if any(str(folder / name) in opened for name in known.files):
                reason = OPEN
            used = _mtime(folder / USED) or _mtime(folder / marker.NAME) or now
            found.append(
                Item(
                    folder=below,
                    sources=tuple(sorted(known.sources)),
                    size=sum(entry.size for entry in known.files.values()),
                    files=len(known.files),
                    used_s_ago=max(0.0, now - used),
                    pinned=(folder / PIN).exists(),
                    in_use=reason,
                )
            )
        return sorted(found, key=lambda item: -item.used_s_ago)

    def _folders(self) -> Iterator[Path]:
        for top in ("hf", "https", "http", "file"):
            # Links are not followed: they may lead out of the cache.
            for path, _, names in os.walk(self.root / top):
                if marker.NAME in names:
                    yield Path(path)

    def find(self, name: str) -> list[Item]:
        """What *name* means: a source as it was asked for, or a folder of the list."""
        return [i for i in self.items() if name == i.folder or name in i.sources]

    def evict(self, item: Item) -> None:
        """Remove it. WeightsError if it is pinned or used."""
        why = "is pinned" if item.pinned else item.in_use
        if why:
            raise WeightsError(why, where=str(self.root / item.folder))
        folder = self.root / item.folder
        # The marker goes first: a folder half removed is not taken for whole.
        (folder / marker.NAME).unlink(missing_ok=True)
        files.sync_folder(folder)
        _clear(folder)
        for empty in (folder, *folder.parents):
            if empty == self.root or any(empty.iterdir()):
                break
            empty.rmdir()

    def distrust(self, item: Item, name: str) -> str:
        """Take *name*, found damaged, for whole no longer: it is fetched again when it
        is next asked for. What was done, in words; nothing while a process has it open.

        A source that needs it is not whole either: a mirror's list would be short.
        """
        folder = self.root / item.folder
        path = folder / name
        if str(path) in self._open_files(self.root):
            return OPEN
        known = marker.read(folder)
        left = msgspec.structs.replace(
            known,
            files={n: entry for n, entry in known.files.items() if n != name},
            sources={s: n for s, n in known.sources.items() if name not in n},
        )
        marker.write(folder, left)
        if item.in_use:
            # Another node may have it mapped, which can't be seen from here.
            return "is no longer taken for whole"
        path.unlink(missing_ok=True)
        return "is removed"

    def make_room(self, needed: int) -> int:
        """Evict what was not used for longest until *needed* bytes are freed."""
        freed = 0
        for item in self.items():
            if freed >= needed:
                break
            if not (item.pinned or item.in_use):
                self.evict(item)
                freed += item.size
        return freed

    def pin(self, item: Item) -> None:
        (self.root / item.folder / PIN).touch()

    def unpin(self, item: Item) -> None:
        (self.root / item.folder / PIN).unlink(missing_ok=True)

    def used(self, folder: Path) -> None:
        """Note that *folder* was asked for now."""
        try:
            (folder / USED).touch()
        except OSError:
            pass  # a cache that is only read keeps no account

    def hold(self, node: str, sources: Sequence[str]) -> None:
        """Say what the replicas of *node* use: all of it, every time."""
        holds = self.root / WORK / "holds"
        holds.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(Held(sources=tuple(sources)))
        files.replace(holds / f"{node}.json", content)

    def _held(self, now: float) -> set[str]:
        found: set[str] = set()
        for path in (self.root / WORK / "holds").glob("*.json"):
            if now - (_mtime(path) or now) > HOLD_LASTS:
                continue
            try:
                found |= set(msgspec.json.decode(path.read_bytes(), type=Held).sources)
            except (FileNotFoundError, msgspec.DecodeError):
                continue
        return found

    def _now(self) -> float:
        """The time by the clock that stamps files here: a server's, on NFS."""
        try:
            (self.root / WORK).mkdir(exist_ok=True)
            clock = self.root / WORK / "clock"
            clock.touch()
            return clock.stat().st_mtime
        except OSError:
            return time.time()


def _clear(folder: Path) -> None:
    """Remove what is in *folder*, but for weights of their own: the same address with a
    digest, or with a query, lies below the one without.
    """
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif not (path / marker.NAME).exists():
            _clear(path)
            if not any(path.iterdir()):
                path.rmdir()


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
