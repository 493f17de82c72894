"""Engines as processes of their own session, held by a pidfd.

A pidfd waits for a process that is no child of ours as it does for one that is, and
it cannot come to mean another process: a number can. So started and adopted engines
take the same path, and every signal goes through one.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress

import anyio
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.errors import EngineError
from llmgw.supervisor import exec, procfs
from llmgw.supervisor.backend import Place
from llmgw.supervisor.cgroup import Cgroup, Tree
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger, is_proved, tagged

log = logging.getLogger(__name__)

GATE = 3
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

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _members(self) -> list[procfs.Stat]:
        """All that the engine started and that still lives.

        By cgroup where there is one. Else by session, by the tag in the environment,
        by descent, and by having been found so before: some set their title over the
        environment, some call setsid, some lose their parent, few do all three.
        """
        if self._cgroup:
            found = (procfs.stat(pid) for pid in self._cgroup.pids())
            return [stat for stat in found if stat and stat.is_alive]
        found = related(self._id, self._tag, self.identity, self._known)
        self._known = {stat.pid: stat.started for stat in found}
        return found

    async def _all_gone(self) -> None:
        while members := await run_sync(self._members):
            for member in members:
                await _gone(member)

    def _signal(self, sign: signal.Signals) -> None:
        # The engine first: a worker that dies before its head looks like a crash.
        send(
            sorted(self._members(), key=lambda m: m.pid != self.identity.pid),
            sign,
        )

    async def _kill(self) -> None:
        while left := await run_sync(self._members):
            if not (self._cgroup and await run_sync(self._cgroup.kill)):
                await run_sync(send, left, signal.SIGKILL)
            with anyio.move_on_after(UNKILLABLE_AFTER) as patience:
                for member in left:
                    await _gone(member)
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
        cgroup = self._tree.make(id, launch.limits) if self._tree else None
        try:
            (place.run / "launch").write_bytes(content(launch, place, cgroup))
            with gated(place) as (pid, go):
                identity = Identity.of(pid)
                assert identity, "it waits at the gate, or is a zombie until reaped"
                process = Process(id, self._ledger.tag, identity, cgroup)
                record(identity, str(cgroup.path) if cgroup else None)
                go()
        except (OSError, ValueError) as error:
            raise EngineError(
                f"cannot be started: {error}", where=launch.argv[0]
            ) from error
        return process

    async def adopt(self, entry: Entry) -> Process | None:
        return await run_sync(self._adopt, entry)

    def _adopt(self, entry: Entry) -> Process | None:
        cgroup = Cgroup.at(entry.cgroup) if entry.cgroup else None
        try:
            process = Process(entry.id, self._ledger.tag, entry.identity, cgroup)
        except OSError:
            return None
        # Only now that it is held does the proof hold: before, it could have ended and
        # its number been given away between the look and the grip.
        if not is_proved(entry):
            process.close()
            return None
        process.adopted = True
        return process

    async def clear(self, id: str) -> None:
        with anyio.CancelScope(shield=True):
            while left := await run_sync(lambda: tagged(self._ledger.tag).get(id, [])):
                await run_sync(send, left, signal.SIGKILL)
                with anyio.move_on_after(UNKILLABLE_AFTER):
                    for stat in left:
                        await _gone(stat)


def content(
    launch: Launch, place: Place, cgroup: Cgroup | None, *, log: str = ""
) -> bytes:
    """The file that the exec step reads. *log*: where output goes, if not open yet."""
    limits = launch.limits
    settings: dict[str, str] = {}
    if log:
        settings["log"] = log
    if cgroup:
        settings["cgroup"] = str(cgroup.path / "cgroup.procs")
    if limits.oom_score_adj is not None:
        settings["oom_score_adj"] = str(limits.oom_score_adj)
    if limits.memlock_unlimited:
        settings["memlock"] = "unlimited"
    if limits.cpuset:
        settings["cpuset"] = ",".join(str(cpu) for cpu in limits.cpuset)
    env = {**place.env, **launch.env}
    return exec.fields(launch.argv, env, launch.cwd or str(place.run), settings)


@contextmanager
def gated(place: Place) -> Generator[tuple[int, Callable[[], None]]]:
    """A child that waits; it becomes the engine at `go`, and ends if left without."""
    gate, opener = os.pipe()
    out = -1
    try:
        out = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        pid = os.posix_spawn(
            sys.executable,
            # -I -S: nothing of the environment or of site-packages, and twice as fast
            [
                sys.executable,
                "-I",
                "-S",
                exec.__file__,
                str(place.run / "launch"),
                str(GATE),
            ],
            {},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, out, 2),
                (os.POSIX_SPAWN_DUP2, gate, GATE),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=[s for s in signal.valid_signals() if s not in _FIXED],
        )
        try:
            yield pid, lambda: _open(opener)
        except BaseException:
            os.close(opener)
            opener = -1
            os.waitpid(pid, 0)
            raise
    finally:
        for fd in (gate, out, opener):
            if fd >= 0:
                os.close(fd)


_FIXED = (signal.SIGKILL, signal.SIGSTOP)


def _open(gate: int) -> None:
    os.write(gate, b"!")


def send(stats: Iterable[procfs.Stat], sign: signal.Signals) -> None:
    """To these processes, and to no other that may have got their number since."""
    for stat in stats:
        try:
            pidfd = os.pidfd_open(stat.pid)
        except OSError:
            continue
        try:
            now = procfs.stat(stat.pid)
            if now and now.started == stat.started:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, sign)
        finally:
            os.close(pidfd)


async def _gone(stat: procfs.Stat) -> None:
    try:
        pidfd = os.pidfd_open(stat.pid)
    except OSError:
        return
    try:
        now = await run_sync(procfs.stat, stat.pid)
        if now and now.started == stat.started:
            await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def related(
    id: str, tag: str, identity: Identity, known: Mapping[int, int]
) -> list[procfs.Stat]:
    """What lives of the engine: in its session, tagged, descended, or known before.

    The session's number is taken as long as anyone is in it. If its leader is
    another process by now, the session is another one too.
    """
    # What was there before the engine is not of it: most of the machine, usually.
    since = [s for s in procfs.everyone() if s.started >= identity.started]
    leader = procfs.stat(identity.pid)
    is_ours = leader is None or leader.started == identity.started
    found = {stat.pid for stat in tagged(tag, since).get(id, [])}
    for stat in since:
        if known.get(stat.pid) == stat.started or (
            is_ours and identity.pid in (stat.session, stat.pid)
        ):
            found.add(stat.pid)
    # A parent is older than its child, but numbers may have wrapped: look until no
    # more are found.
    while more := {s.pid for s in since if s.parent in found} - found:
        found |= more
    return [stat for stat in since if stat.pid in found and stat.is_alive]
