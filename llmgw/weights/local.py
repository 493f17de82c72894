"""Models that lie under model_dirs. Runs in a child: a mount may hang under it.

A folder that has not changed is not listed again, and a file that has not changed is
not opened again: a second scan costs one look at each folder and at each model file.
"""

import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from llmgw.weights import gguf, safetensors
from llmgw.weights.gguf import Broken

# A folder's time has the grain of its file system, two seconds at worst: what was
# changed just now may change again without a new time.
GRAIN_NS = 3 * 10**9
MAX_DEPTH = 32
MARKER = "llmgw-complete.json"

_WEIGHTS = (".gguf", ".safetensors")
_BESIDE = frozenset(
    (
        "config.json",
        "adapter_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "chat_template.json",
        safetensors.INDEX,
        MARKER,
    )
)
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class Answer(NamedTuple):
    """In the order that a probe's answer has."""

    value: list[dict[str, Any]]
    source: str
    reason: str
    troubles: list[tuple[str, str, str]]
    memory: dict[str, Any]


class Listing(NamedTuple):
    """What matters in one folder. *files*: name to inode, size and time of change."""

    folders: list[str]
    files: dict[str, list[int]]


def survey(folders: list[str], memory: dict[str, Any] | None = None) -> Answer:
    """*memory*: what the last scan of these said to give back."""
    scan = _Scan(memory or {})
    for folder in folders:
        scan.walk(os.path.realpath(folder), 0)
    scan.troubles.sort()
    models = sorted(scan.models, key=lambda model: model["path"])
    kept = {"folders": scan.kept, "heads": scan.heads}
    return Answer(models, "model_dirs", "", scan.troubles, kept)


class _Scan:
    def __init__(self, memory: dict[str, Any]) -> None:
        self.models: list[dict[str, Any]] = []
        self.troubles: list[tuple[str, str, str]] = []
        self.kept: dict[str, Any] = {}
        self.heads: dict[str, Any] = {}
        self._old_folders: dict[str, Any] = memory.get("folders", {})
        self._old_heads: dict[str, Any] = memory.get("heads", {})
        self._seen: set[tuple[int, int]] = set()
        self._by_file: dict[tuple[int, int], dict[str, Any]] = {}

    def walk(self, folder: str, depth: int) -> None:
        """Every folder once, however many links lead to it."""
        try:
            found = os.stat(folder)  # noqa: PTH116 -- a hundred thousand of them
            if (found.st_dev, found.st_ino) in self._seen or depth > MAX_DEPTH:
                return
            self._seen.add((found.st_dev, found.st_ino))
            listing = self._listing(folder, found.st_mtime_ns)
        except FileNotFoundError:  # gone meanwhile; that it never was, `disks` says
            return
        except OSError as error:
            words = f"cannot be read: {error.strerror}"
            self.troubles.append(("folder_unreadable", words, folder))
            return
        if listing.files:
            self._models(folder, listing.files, found.st_dev)
        for name in listing.folders:
            self.walk(f"{folder}/{name}", depth + 1)

    def _listing(self, folder: str, changed: int) -> Listing:
        old = self._old_folders.get(folder)
        if old is not None and old[0] == changed:
            listing = Listing(old[1], _looked_at(folder, old[2]))
        else:
            listing = _listed(folder)
        if abs(time.time_ns() - changed) > GRAIN_NS:
            self.kept[folder] = [changed, listing.folders, list(listing.files)]
        return listing

    def _models(self, folder: str, files: dict[str, list[int]], device: int) -> None:
        digests = _digests(folder) if MARKER in files else {}
        tensors = {
            name: one[1] for name, one in files.items() if name.endswith(".safetensors")
        }
        if tensors:
            stamp = [[name, *files[name]] for name in sorted(files)]
            key = (device, files[min(tensors)][0])
            found = self._head(
                folder, stamp, partial(safetensors.folder, folder, tensors)
            )
            if found is not None and key not in self._by_file:
                self._add(folder, found, key)
            elif found is not None:
                self._by_file[key].setdefault("also", []).append(folder)
        for group in _groups(files):
            path = f"{folder}/{group[0]}"
            key = (device, files[group[0]][0])
            if key in self._by_file:  # a hard link to what was counted
                self._by_file[key].setdefault("also", []).append(path)
                continue
            stamp = [[name, *files[name]] for name in group]
            found = self._head(path, stamp, partial(_gguf, folder, group))
            if found is not None:
                size = sum(files[name][1] for name in group)
                said: dict[str, Any] = {"size": size, "shards": len(group)}
                if len(group) == 1 and group[0] in digests:
                    said["digest"] = digests[group[0]]
                self._add(path, {**found, **said}, key)

    def _head(self, path: str, stamp: Any, read: Any) -> dict[str, Any] | None:
        """Read, or remembered of the same files. What is broken is remembered too."""
        old = self._old_heads.get(path)
        if old is not None and old[0] == stamp:
            found, why = old[1], old[2]
        else:
            found, why = _tried(read)
        self.heads[path] = [stamp, found, why]
        if why:
            self.troubles.append(("model_unusable", why, path))
        return found

    def _add(self, path: str, found: dict[str, Any], key: tuple[int, int]) -> None:
        model = {"path": path, **found}
        self.models.append(model)
        self._by_file[key] = model


def _tried(read: Any) -> tuple[dict[str, Any] | None, str]:
    try:
        return read(), ""
    except Broken as error:
        return None, str(error)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except MemoryError:
        return None, "has a header that needs more memory than the scan may use"


def _listed(folder: str) -> Listing:
    folders: list[str] = []
    files: dict[str, list[int]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            # Fetches that are under way, the hub's locks, git: all begin with a dot.
            if name[0] == ".":
                continue
            # A folder first: one that was fetched from an address is called as the
            # last part of that is, and so `q.gguf` as often as not.
            if _is_folder(entry):
                folders.append(name)
            elif name.endswith(_WEIGHTS) or name in _BESIDE:
                _note(folder, name, files)
    return Listing(sorted(folders), dict(sorted(files.items())))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) or (
            entry.is_symlink() and entry.is_dir()
        )
    except OSError:  # a link in a circle: not what lies beside it is to go with it
        return False


def _looked_at(folder: str, names: list[str]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = {}
    for name in names:
        _note(folder, name, files)
    return files


def _note(folder: str, name: str, files: dict[str, list[int]]) -> None:
    try:
        found = os.stat(f"{folder}/{name}")  # noqa: PTH116 -- links are followed
    except OSError:
        return  # a link into nowhere
    # A FIFO of that name would hang whoever opens it.
    if found.st_mode & 0o170000 == 0o100000:
        files[name] = [found.st_ino, found.st_size, found.st_mtime_ns]


def _groups(files: dict[str, list[int]]) -> list[list[str]]:
    """GGUF files as they belong together: the shards of one model, in order."""
    shards: dict[tuple[str, str], list[str]] = {}
    alone: list[list[str]] = []
    for name in files:
        if not name.endswith(".gguf"):
            continue
        match = _SHARD.fullmatch(name)
        if match is None:
            alone.append([name])
        else:
            shards.setdefault((match[1], match[3]), []).append(name)
    return [*alone, *(sorted(names) for names in shards.values())]


def _gguf(folder: str, names: list[str]) -> dict[str, Any]:
    match = _SHARD.fullmatch(names[0])
    if match is not None:
        there = {int(name[-len("00000-of-00000.gguf") :][:5]) for name in names}
        wanted = int(match[3])
        missing = [number for number in range(1, wanted + 1) if number not in there]
        if missing or wanted == 0:
            raise Broken(f"{len(missing)} of {wanted} shards are not there")
    found = gguf.read(f"{folder}/{names[0]}")
    # The vocabulary is in the first; parameters are in all of them.
    for name in names[1:]:
        more = gguf.read(f"{folder}/{name}").get("parameters", 0)
        found["parameters"] = found.get("parameters", 0) + more
    found.pop("split", None)
    return found


def _digests(folder: str) -> dict[str, str]:
    """Those that were checked when the files were fetched."""
    files: Any = safetensors.document(Path(folder) / MARKER).get("files")
    found: dict[str, str] = {}
    if isinstance(files, dict):
        for name, entry in cast("dict[str, Any]", files).items():
            if isinstance(entry, dict) and "sha256" in entry:
                found[name] = f"sha256:{entry['sha256']}"
    return found
