"""All that an engine started and that still lives: to find it, to signal it."""

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress

import anyio
from anyio.to_thread import run_sync

from llmgw.supervisor import procfs
from llmgw.supervisor.ledger import Identity, replica


def send(stats: Iterable[procfs.Stat], sign: signal.Signals) -> None:
    """To these processes, and to no other that may have got their number since.

    What an engine started may be another user's, by a program that is setuid: to that
    one no signal may be sent, and the others get theirs all the same.
    """
    for stat in stats:
        try:
            pidfd = os.pidfd_open(stat.pid)
        except OSError:
            continue
        try:
            now = procfs.stat(stat.pid)
            if now and now.started == stat.started:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, sign)
        finally:
            os.close(pidfd)


async def gone(stat: procfs.Stat) -> None:
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
    id: str,
    tag: str,
    identity: Identity,
    known: Mapping[int, int],
    *,
    descended: bool = False,
) -> list[procfs.Stat]:
    """What lives of the engine: in its session, tagged, descended, or known before.

    What bears another replica's tag is that one's, wherever it stands, and so is what
    is below it. The session's number is taken as long as anyone is in it. If its leader
    is another process by now, the session is another one too.

    *descended*: it was started below us, so that what it leaves becomes our child, and
    only what is below us is looked at: reading all of /proc takes 10 ms and more, and a
    restart waits for it.
    """

    named: dict[int, str | None] = {}

    def whose(pid: int) -> str | None:
        if pid not in named:
            named[pid] = replica(tag, pid)
        return named[pid]

    def is_not_anothers(stat: procfs.Stat) -> bool:
        # What was there before the engine is not of it: most of the machine, usually.
        return stat.started >= identity.started and whose(stat.pid) in (None, id)

    since = procfs.descendants(os.getpid(), is_not_anothers) if descended else None
    if since is None:
        since = [stat for stat in procfs.everyone() if is_not_anothers(stat)]
    leader = procfs.stat(identity.pid)
    is_ours = leader is None or leader.started == identity.started
    found = {stat.pid for stat in since if whose(stat.pid) == id}
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
