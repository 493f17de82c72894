"""What still runs of the engines that an earlier agent started."""

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec.structs import replace

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
        if engine := await _adopted(entry, backends):
            found.alive.append((entry, engine))
        else:
            found.gone.append(entry)
    for bad in found.unreadable:
        await run_sync(ledger.set_aside, bad)
    known = {entry.id for entry, _ in found.alive}
    dead: list[Entry] = []
    for entry in await run_sync(ledger.copies, known):
        if engine := await _adopted(entry, backends):
            log.warning("line lost, its copy stands replica=%s", entry.id)
            found.alive.append((entry, engine))
        else:
            dead.append(entry)
    await _look_for_strays(ledger, backends["process"], found)
    # Of a line that was lost its copy alone tells in which cgroup something is left.
    known = {entry.id for entry, _ in (*found.alive, *found.strays)}
    gone = {entry.id: entry for entry in (*dead, *found.gone) if entry.id not in known}
    found.gone = list(gone.values())
    boot = await run_sync(procfs.boot_id)
    for entry in found.gone:
        if entry.cgroup and entry.identity.boot == boot:
            await backends["process"].clear(entry.id)  # what bears no tag any more
        await run_sync(ledger.forget, entry.id)
    line = {entry.id: entry for entry in lines.entries}
    as_written = [entry for entry, _ in found.alive if line.get(entry.id) is entry]
    mended = [entry for entry, _ in found.alive if line.get(entry.id) is not entry]
    await run_sync(ledger.restore, as_written, mended)
    log.info(
        "engines surveyed adopted=%d strays=%d gone=%d unreadable=%d took=%.3fs",
        len(found.alive),
        len(found.strays),
        len(found.gone),
        len(found.unreadable),
        time.monotonic() - begun,
    )
    return found


async def _adopted(entry: Entry, backends: dict[str, Backend]) -> Engine | None:
    """By what started it. That may be gone, no longer be wanted, or not answer just
    then, as systemd while it begins anew: the process is the same.
    """
    process = backends["process"]
    own = backends.get(entry.backend, process)
    return await own.adopt(entry) or await process.adopt(entry)


async def _look_for_strays(ledger: Ledger, backend: Backend, found: Survey) -> None:
    """The tag is proof too: only what an engine of ours started can bear it."""
    if not ledger.tag:
        return
    known = {entry.id for entry, _ in found.alive}
    gone = {entry.id: entry for entry in found.gone}
    for id, stats in (await run_sync(tagged, ledger.tag)).items():
        if id in known:
            continue
        leaders = [stat for stat in stats if stat.session == stat.pid]
        if id in gone:
            entry, where = await run_sync(_meant, gone[id], leaders), found.alive
        else:
            entry, where = await run_sync(_stray, ledger, id, leaders), found.strays
        engine = await backend.adopt(entry) if entry else None
        if entry and engine:
            where.append((entry, engine))
            continue
        # Its engine is dead, and it may hold the GPU that the next one needs.
        log.warning("leftovers ended replica=%s pids=%s", id, [s.pid for s in stats])
        await backend.clear(id)


def _meant(line: Entry, leaders: list[procfs.Stat]) -> Entry | None:
    """The line, with the identity of the engine that it means: by two parts of three.

    What an engine left bears its tag as well, but neither its number nor its start
    time. One byte that the disk gave back otherwise was enough to end the engine. A
    line of this boot without a number is a unit's, which takes along what it left.
    """
    for stat in sorted(leaders, key=lambda stat: stat.started):
        now = Identity.of(stat.pid)
        if now is None:
            continue
        was = line.identity
        same = (now.pid == was.pid, now.started == was.started, now.boot == was.boot)
        if sum(same) >= 2 or (was.pid == 0 and now.boot == was.boot):
            return replace(line, identity=replace(now, invocation=was.invocation))
    return None


def _stray(ledger: Ledger, id: str, leaders: list[procfs.Stat]) -> Entry | None:
    """An entry for the engine among them: it leads its session, as all are started, and
    was there before all that it started.
    """
    for stat in sorted(leaders, key=lambda stat: stat.started):
        if identity := Identity.of(stat.pid):
            argv = procfs.argv(stat.pid)
            return Entry(
                machine=ledger.machine,
                id=id,
                generation=0,
                digest="",
                identity=identity,
                launch=Launch(argv=argv or ("?",)),
                cgroup=_cgroup(id, stat.pid),
            )
    return None


def _cgroup(id: str, pid: int) -> str | None:
    """Only the one that this engine was given: the sweep of any other would take more,
    as another replica's, into which somebody moved it.
    """
    path = procfs.cgroup(pid)
    return str(path) if path and path.name == f"engine-{id}" else None
