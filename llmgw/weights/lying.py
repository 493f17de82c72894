"""The files of a plan in its folder: which lie there whole, and how the others come."""

from collections.abc import Iterable
from pathlib import Path

from llmgw import files
from llmgw.weights import marker
from llmgw.weights.file import Got, Wanted
from llmgw.weights.hub import git_blob
from llmgw.weights.parts import part_of
from llmgw.weights.plan import Plan


def whole(folder: Path, wanted: tuple[Wanted, ...]) -> dict[str, Got]:
    """Those that another source brought: another pattern of the same commit, say."""
    known = marker.read(folder).files
    return {
        file.name: Got(size=entry.size, sha256=entry.sha256, validator=entry.validator)
        for file in wanted
        if (entry := known.get(file.name)) is not None
        and marker.is_as_published(folder / file.name, entry)
        and _is(file, entry, folder / file.name)
    }


def _is(file: Wanted, entry: marker.Entry, path: Path) -> bool:
    """Whether that is certain: an address alone may mean another file by now."""
    if file.sha256 is not None:
        return file.sha256 == entry.sha256
    # What git keeps is small.
    return file.blob is not None and git_blob(path, entry.size) == file.blob


def publish(folder: Path, parts: Path, names: Iterable[str]) -> None:
    """All under their names, at once and for good.

    Not one by one as they come: until the marker is there a name in *folder* says
    nothing, and a kill before that had all that lay whole fetched again.
    """
    folders: set[Path] = set()
    for name in names:
        part, path = part_of(parts, name), folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Engines run as other users.
        part.chmod(0o644)
        part.replace(path)
        folders.add(path.parent)
    for changed in folders:
        files.sync_folder(changed)


def mark(plan: Plan, folder: Path, got: dict[str, Got]) -> None:
    """Say that *got* is all of *plan*, and whole."""
    found = marker.read(folder)
    entries = {
        name: marker.Entry(size=g.size, sha256=g.sha256, validator=g.validator)
        for name, g in got.items()
    }
    marker.write(
        folder,
        marker.Marker(
            files={**found.files, **entries},
            sources={**found.sources, plan.name: tuple(sorted(got))},
        ),
    )
