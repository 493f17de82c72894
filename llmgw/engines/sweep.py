"""Which contents of `.builds` may go: those that nothing means any more.

Kept are, for each name, what it means and what it meant before, and whatever a process
was started from: an engine opens parts of its build long after its start, and may call
itself by any name.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

from llmgw.engines.unpack import remove
from llmgw.supervisor.procfs import open_below

log = logging.getLogger(__name__)

STORE, PREVIOUS = ".builds", ".previous"
PROC = Path("/proc")


@contextmanager
def alone(engines_dir: Path) -> Generator[None, None, None]:
    """Nobody else publishes or sweeps meanwhile: between its rename and its name, a
    build looks like one that nobody wants. OSError if the folder cannot be written.
    """
    with (engines_dir / STORE / ".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def sweep(engines_dir: Path) -> None:
    """Remove what is not kept. Call it `alone`."""
    store = (engines_dir / STORE).resolve()
    links = [*engines_dir.iterdir(), *(engines_dir / PREVIOUS).glob("*")]
    used = {_below(store, Path(path)) for path in open_below(store)}
    meant = {_below(store, engines_dir / one.readlink()) for one in _links(links)}
    for content in store.iterdir():
        if content.name.startswith(".") or content.name in meant | used:
            continue
        if _is_named(content):
            continue
        log.info("build swept content=%s", content.name)
        remove(content)


def _links(entries: list[Path]) -> list[Path]:
    return [one for one in entries if one.is_symlink()]


def _below(store: Path, target: Path) -> str | None:
    target = target.resolve()
    if not target.is_relative_to(store):
        return None
    return target.relative_to(store).parts[0]


def _is_named(content: Path) -> bool:
    """Whether a process names it, as itself or, for a script, as its first argument:
    that can be seen of another user's, too.
    """
    name = str(content).encode()
    for folder in PROC.glob("[0-9]*"):
        try:
            if name in (folder / "cmdline").read_bytes():
                return True
        except OSError:  # it has ended
            pass
    return False
