"""Engines as processes of their own session, held by a pidfd.

A pidfd waits for a process that is no child of ours as it does for one that is, and
it cannot come to mean another process: a number can. So started and adopted engines
take the same path, and every signal goes through one.
"""

import logging
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.errors import EngineError
from llmgw.supervisor import gate, procfs
from llmgw.supervisor.backend import Place
from llmgw.supervisor.cgroup import Cgroup, Tree
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import (
    UNWRITABLE,
    Entry,
    Identity,
    Ledger,
    is_anothers,
    is_proved,
    replica,
    tagged,
    unwritable,
)
from llmgw.supervisor.members import gone, related, send

log = logging.getLogger(__name__)

# A SIGKILL that has not worked after so long will not: the process sits in a driver.
UNKILLABLE_AFTER = 5.0


class Process:
    """One engine. Its number stays its own until it is reaped, which comes last."""

    def __init__(
        self, id: str, tag: str, identity: Identity, cgroup: Cgroup | None
    ) -> None:
        self.identity = identity
        self.adopted = False
        self._id = id
        self._tag = tag
        self._cgroup = cgroup
        self._pidfd = os.pidfd_open(identity.pid)
        self._is_moved = False
        self._known: dict[int, int] = {}
        self._status = wire.Exit(unknown=True)

    async def exited(self) -> wire.Exit:
        await anyio.wait_readable(self._pidfd)
        return self._look(os.WNOWAIT)

    async def stop(self, sign: signal.Signals, grace: float) -> wire.Exit:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(grace):
                await run_sync(self._signal, sign)
                await self._all_gone()
            await self._kill()  # nobody left: nothing to do
            self._status = await run_sync(self._reap)
        return self._status

    def effort(self) -> tuple[int, int]:
        each = [procfs.effort(member.pid) for member in self._members()]
        return sum(read for read, _ in each), sum(resident for _, resident in each)

    def look_around(self) -> None:
        self._members()

    def ooms(self) -> int | None:
        return self._cgroup.ooms() if self._cgroup else None

    def pressure(self) -> float | None:
        return self._cgroup.pressure() if self._cgroup else None

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _members(self) -> list[procfs.Stat]:
        """All that the engine started and that still lives.

        By cgroup where there is one and nobody moved the engine out of it. Else also by
        session, by the tag in the environment, by descent, and by having been found so
        before: some set their title over the environment, some call setsid, some lose
        their parent, few do all three.
        """
        if self._cgroup is None:
            return self._related()
        stats = (procfs.stat(pid) for pid in self._cgroup.pids())
        inside = [stat for stat in stats if stat and stat.is_alive]
        pids = {stat.pid for stat in inside}
        if self.identity.pid not in pids and not self._is_moved:
            self._is_moved = self._is_there()
        if not self._is_moved:
            return inside
        return inside + [stat for stat in self._related() if stat.pid not in pids]

    def _is_there(self) -> bool:
        now = procfs.stat(self.identity.pid)
        return bool(now and now.is_alive and now.started == self.identity.started)

    def _related(self) -> list[procfs.Stat]:
        found = related(
            self._id,
            self._tag,
            self.identity,
            self._known,
            descended=not self.adopted,
        )
        self._known = {stat.pid: stat.started for stat in found}
        return found

    async def _all_gone(self) -> None:
        while members := await run_sync(self._members):
            for member in members:
                await gone(member)

    def _signal(self, sign: signal.Signals) -> None:
        # The engine first: a worker that dies before its head looks like a crash.
        send(
            sorted(self._members(), key=lambda m: m.pid != self.identity.pid),
            sign,
        )

    async def _kill(self) -> None:
        while left := await run_sync(self._members):
            killed = self._cgroup and await run_sync(self._cgroup.kill)
            if self._is_moved or not killed:
                await run_sync(send, left, signal.SIGKILL)
            with anyio.move_on_after(UNKILLABLE_AFTER) as patience:
                for member in left:
                    await gone(member)
            if patience.cancelled_caught:
                log.error(
                    "engine survives SIGKILL replica=%s pids=%s",
                    self._id,
                    [member.pid for member in left],
                )

    def _look(self, options: int = 0) -> wire.Exit:
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | options)
        except ChildProcessError:  # adopted: its parent was another agent
            return wire.Exit(unknown=True)
        assert result is not None, "without WNOHANG it waits"
        if result.si_code == os.CLD_EXITED:
            return wire.Exit(code=result.si_status)
        return wire.Exit(signal=result.si_status)

    def _reap(self) -> wire.Exit:
        status = self._look()
        self.close()
        if self._cgroup and not self.identity.invocation:  # a unit's is systemd's
            self._cgroup.remove()
        return status


def unstartable(error: OSError, where: str, run: Path) -> EngineError:
    """It is not the engine's fault when our own files can't be written."""
    if error.errno in UNWRITABLE:
        return unwritable(error, run)
    return EngineError(f"cannot be started: {error.strerror}", where=where)


class Processes:
    """The backend that works everywhere."""

    name = "process"

    def __init__(self, ledger: Ledger, tree: Tree | None) -> None:
        self._ledger = ledger
        self._tree = tree
        self.mode = (
            f"process, a cgroup each ({tree.describe()})"
            if tree
            else "process, no cgroup: by session and environment tag"
        )

    async def start(
        self,
        id: str,
        launch: Launch,
        place: Place,
        record: Callable[[Identity, str | None], None],
    ) -> Process:
        return await run_sync(self._start, id, launch, place, record)

    def _start(
        self,
        id: str,
        launch: Launch,
        place: Place,
        record: Callable[[Identity, str | None], None],
    ) -> Process:
        process: Process | None = None
        cgroup: Cgroup | None = None
        try:
            # Beside it all, or an engine would start 12 ms later: moving it takes as
            # long as its interpreter needs to start and the ledger to be flushed.
            with ThreadPoolExecutor(1) as aside:
                if self._tree:
                    aside.submit(self._tree.prepare_to_move)
                    cgroup = self._tree.make(id, launch.limits)
                gate.write(launch, place)
                with gate.gated(place) as (pid, go):
                    joined = aside.submit(cgroup.join, pid) if cgroup else None
                    identity = Identity.of(pid)
                    assert identity, "it waits at the gate, or is a zombie until reaped"
                    process = Process(id, self._ledger.tag, identity, cgroup)
                    record(identity, str(cgroup.path) if cgroup else None)
                    if joined:
                        joined.result()
                    go()
        except BaseException as error:
            if process:
                process.close()
            if cgroup:
                cgroup.remove()
            if isinstance(error, OSError):
                raise unstartable(error, launch.argv[0], place.run) from error
            raise
        return process

    async def adopt(self, entry: Entry) -> Process | None:
        return await run_sync(self._adopt, entry)

    def _adopt(self, entry: Entry) -> Process | None:
        cgroup = _its(entry)
        try:
            process = Process(entry.id, self._ledger.tag, entry.identity, cgroup)
        except OSError:
            return None
        # Only now that it is held does the proof hold: before, it could have ended and
        # its number been given away between the look and the grip.
        if not (is_proved(entry) and _is_an_engine(entry, self._ledger.tag)):
            process.close()
            return None
        process.adopted = True
        return process

    async def clear(self, id: str) -> None:
        with anyio.CancelScope(shield=True):
            while left := await run_sync(self._left, id):
                if cgroup := await run_sync(self._to_sweep, id):
                    await run_sync(cgroup.kill)  # also what is another user's
                await run_sync(send, left, signal.SIGKILL)
                with anyio.move_on_after(UNKILLABLE_AFTER) as patience:
                    for stat in left:
                        await gone(stat)
                if patience.cancelled_caught:
                    # All other engines wait to be adopted. Where it has a cgroup, none
                    # is started beside it.
                    pids = [stat.pid for stat in left]
                    log.error("leftovers survive SIGKILL replica=%s pids=%s", id, pids)
                    return

    def _left(self, id: str) -> list[procfs.Stat]:
        """By its tag and by its cgroup: some set their title over the environment."""
        found = list(tagged(self._ledger.tag).get(id, [])) if self._ledger.tag else []
        if cgroup := self._to_sweep(id):
            seen = {stat.pid for stat in found}
            pids = [pid for pid in cgroup.pids() if pid not in seen]
            stats = (procfs.stat(pid) for pid in pids)
            found += [stat for stat in stats if stat and stat.is_alive]
        return found

    def _to_sweep(self, id: str) -> Cgroup | None:
        """Its cgroup; not if there is what was started for another replica, or by
        another agent, which a user may have begun from the same shell.
        """
        cgroup = self._tree.at(id) if self._tree else None
        if cgroup is None:
            return None
        others = (is_anothers(self._ledger.tag, id, pid) for pid in cgroup.pids())
        return None if any(others) else cgroup


def _is_an_engine(entry: Entry, tag: str) -> bool:
    """As each is started: it leads a session, and is no other replica's.

    A line that names the machine's first process would take all below it along, and one
    that was copied for a second replica would end the engine of the first.
    """
    pid = entry.identity.pid
    stat = procfs.stat(pid)
    leads = stat is not None and stat.session == pid
    return leads and pid != 1 and replica(tag, pid) in (None, entry.id)


def _its(entry: Entry) -> Cgroup | None:
    """The cgroup that the line names, if the engine is there: all in it end with it."""
    found = procfs.cgroup(entry.identity.pid) if entry.cgroup else None
    named = Path(entry.cgroup or "")
    return Cgroup.at(str(named)) if found and found.is_relative_to(named) else None
