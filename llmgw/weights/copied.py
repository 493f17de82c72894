"""Weights that somebody put there: used where they lie, read and never altered."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmgw.errors import WeightsError
from llmgw.weights import marker
from llmgw.weights.cache import Cache
from llmgw.weights.claim import node_hash
from llmgw.weights.hub import matching
from llmgw.weights.plan import name_of, refs
from llmgw.weights.sources import (
    GLOB,
    Hub,
    Local,
    Source,
    Web,
    file_name,
    masked,
    parse,
    place,
    sha256_of,
)

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)$")


def answer(folder: Path, names: Sequence[str]) -> Path:
    """What an engine is given: the file, the first of a split one, or the folder."""
    if len(names) == 1:
        return folder / names[0]
    ordered = sorted(names)
    split = [_PART.fullmatch(name) for name in ordered]
    wholes = {(m[1], m[3], m[4]) for m in split if m and m[4] == ".gguf"}
    if all(split) and len(wholes) == 1:
        return folder / ordered[0]
    return folder


def fetched(source: Source, sha256: str | None, folder: Path) -> Path | None:
    """What lies complete below *folder*, a cache of ours or of another node's."""
    if isinstance(source, Hub):
        commit = commit_of(source, folder)
        if commit is None:
            return None
        below = folder / place(source, None, commit)
        name = name_of(source, commit)
    else:
        below = folder / place(source, sha256)
        name = marker_name(source)
    names = marker.whole(below, name, sha256)
    return None if names is None else answer(below, names)


def there(text: str, digest: str | None, dirs: Sequence[Path]) -> Path | None:
    """Weights that lie complete in one of *dirs*, by their markers: a few stats."""
    sha256 = sha256_of(digest, masked(text))
    source = parse(text, digest)
    for folder in dirs:
        path = fetched(source, sha256, folder)
        if path is not None:
            Cache(dirs[0]).used(root_of(path))
            return path
    return None


def root_of(path: Path) -> Path:
    """The folder with the marker that *path*, an answer of ours, lies under."""
    for folder in (path, *path.parents):
        if (folder / marker.NAME).exists():
            return folder
    return path


def write_held(cache: Path, sources: Sequence[str]) -> None:
    """Keep in *cache* what the replicas of this node use."""
    names = [held_name(source, cache) for source in sources]
    Cache(cache).hold(node_hash(), [name for name in names if name is not None])


def held_name(text: str, cache: Path) -> str | None:
    """What the marker calls the source *text*, if it was ever fetched into *cache*.

    None for what is no source: its replica is told why, and it holds nothing.
    """
    try:
        source = parse(text, digest="")
    except WeightsError:
        return None
    if not isinstance(source, Hub):
        return marker_name(source)
    commit = commit_of(source, cache)
    return None if commit is None else name_of(source, commit)


def marker_name(source: Web | Local) -> str:
    from_web = isinstance(source, Web)
    return masked(source.url) if from_web else f"file://{source.path}"


def commit_of(source: Hub, folder: Path) -> str | None:
    """The commit that a moving revision was when it was fetched."""
    if source.is_pinned:
        return source.revision
    return named_in(folder / refs(source) / source.revision)


def candidates(
    source: Source, sha256: str | None, dirs: Sequence[Path]
) -> Iterator[Path]:
    """What looks like *source* in *dirs*, whole; its digest is still to be checked."""
    for folder in dirs:
        match source:
            case Hub():
                for root in _roots(source, folder):
                    names = _complete(source.pattern, root)
                    if names:
                        yield answer(root, names)
            case Web():
                # A name alone says little: only with a digest is it told apart from
                # another model.gguf.
                path = folder / file_name(source)
                if sha256 is not None and path.is_file():
                    yield path
            case Local(path=path):
                if Path(path).resolve().is_relative_to(folder.resolve()):
                    yield Path(path)


def _roots(source: Hub, folder: Path) -> Iterator[Path]:
    """Where people's tools put a repository: the hub's own cache, or a plain folder."""
    kept = f"models--{source.owner}--{source.name}"
    for cache in (folder / kept, folder / "hub" / kept):
        commit = (
            source.revision
            if source.is_pinned
            else named_in(cache / "refs" / source.revision)
        )
        if commit:
            yield cache / "snapshots" / commit
    if source.revision == "main":
        # A plain folder does not say which commit it is of.
        yield folder / source.owner / source.name


def named_in(ref: Path) -> str | None:
    """The commit that *ref*, a file with nothing else in it, names, if it does."""
    try:
        return ref.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _complete(pattern: str, root: Path) -> list[str] | None:
    """The files in *root* that *pattern* means, unless some are seen to be missing."""
    if not root.is_dir():
        return None
    there = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    names = sorted(matching(pattern, there))
    if not names or _is_split_short(names):
        return None
    if any(p.suffix in (".incomplete", ".part") for p in root.rglob("*")):
        return None
    exact = bool(pattern) and not GLOB & set(pattern)
    if not pattern and "config.json" not in names:
        return None
    return names if exact or _has_weights(names) else None


def _has_weights(names: Sequence[str]) -> bool:
    return any(
        name.endswith((".gguf", ".safetensors", ".bin", ".pt")) for name in names
    )


def _is_split_short(names: Sequence[str]) -> bool:
    counts: dict[tuple[str, str, str], int] = {}
    for name in names:
        found = _PART.fullmatch(name)
        if found:
            key = (found[1], found[3], found[4])
            counts[key] = counts.get(key, 0) + 1
    return any(count < int(total) for (_, total, _), count in counts.items())
