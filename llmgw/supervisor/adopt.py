"""What still runs of the engines that an earlier agent started."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from anyio.to_thread import run_sync

from llmgw.supervisor import procfs
from llmgw.supervisor.backend import Backend, Engine
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger, Unreadable, tagged

log = logging.getLogger(__name__)


@dataclass
class Survey:
    """*gone*: the ledger names them, and they run no more.

    *strays* are ours by their tag, but the ledger does not say what they should be:
    their digest is "", so that no wish is taken for theirs. *partly* as in `Lines`.
    """

    alive: list[tuple[Entry, Engine]] = field(
        default_factory=list[tuple[Entry, Engine]]
    )
    strays: list[tuple[Entry, Engine]] = field(
        default_factory=list[tuple[Entry, Engine]]
    )
    gone: list[Entry] = field(default_factory=list[Entry])
    unreadable: list[Unreadable] = field(default_factory=list[Unreadable])
    partly: dict[Path, list[str]] = field(default_factory=dict[Path, list[str]])


async def survey(ledger: Ledger, backends: dict[str, Backend]) -> Survey:
    """Takes over all that is proved ours, and clears away what dead engines left."""
    begun = time.monotonic()
    found = Survey()
    lines = await run_sync(ledger.read)
    found.unreadable, found.partly = lines.unreadable, lines.partly
    for entry in lines.entries:
        # What started it may be gone, or no longer be wanted: its process is the same.
        backend = backends.get(entry.backend, backends["process"])
        engine = await backend.adopt(entry)
        if engine:
            found.alive.append((entry, engine))
        else:
            found.gone.append(entry)
    for bad in found.unreadable:
        await run_sync(ledger.set_aside, bad)
    await _look_for_strays(ledger, backends["process"], found)
    for entry in found.gone:
        await run_sync(ledger.forget, entry.id)
    log.info(
        "engines surveyed adopted=%d strays=%d gone=%d unreadable=%d took=%.3fs",
        len(found.alive),
        len(found.strays),
        len(found.gone),
        len(found.unreadable),
        time.monotonic() - begun,
    )
    return found


async def _look_for_strays(ledger: Ledger, backend: Backend, found: Survey) -> None:
    """The tag is proof too: only what an engine of ours started can bear it."""
    if not ledger.tag:
        return
    known = {entry.id for entry, _ in found.alive}
    for id, stats in (await run_sync(tagged, ledger.tag)).items():
        if id in known:
            continue
        entry = await run_sync(_stray, ledger, id, stats)
        engine = await backend.adopt(entry) if entry else None
        if entry and engine and id not in {gone.id for gone in found.gone}:
            found.strays.append((entry, engine))
            continue
        if engine:
            engine.close()
        # Its engine is dead, and it may hold the GPU that the next one needs.
        log.warning("leftovers ended replica=%s pids=%s", id, [s.pid for s in stats])
        await backend.clear(id)


def _stray(ledger: Ledger, id: str, stats: list[procfs.Stat]) -> Entry | None:
    """An entry for the engine among them: it leads its session, as all are started."""
    for stat in stats:
        if stat.session == stat.pid and (identity := Identity.of(stat.pid)):
            argv = procfs.argv(stat.pid)
            return Entry(
                machine=ledger.machine,
                id=id,
                generation=0,
                digest="",
                identity=identity,
                launch=Launch(argv=argv or ("?",)),
                cgroup=_cgroup(stat.pid),
            )
    return None


def _cgroup(pid: int) -> str | None:
    """Only one that an engine was given: the sweep of any other would take more."""
    path = procfs.cgroup(pid)
    return str(path) if path and path.name.startswith("engine-") else None
