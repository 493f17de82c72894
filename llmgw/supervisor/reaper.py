"""Nobody of ours stays a zombie, whoever started it.

As a subreaper the agent becomes the parent of what engines leave behind, instead of
the machine's first process, which in a container may reap late or never.
"""

import ctypes
import logging
import os
from collections.abc import Callable

import anyio
from anyio.to_thread import run_sync

from llmgw.supervisor import procfs

log = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36
INTERVAL = 1.0
# A child that its own starter waits for is collected at once. One that nobody has
# collected for so many looks has nobody.
LOOKS = 3


def become_subreaper() -> None:
    """From now on orphans among our descendants are ours; children inherit nothing."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


async def run(is_held: Callable[[int], bool], interval: float = INTERVAL) -> None:
    """*is_held*: this one is a keeper's, who reaps it last."""
    seen: dict[tuple[int, int], int] = {}
    while True:
        await anyio.sleep(interval)
        if not _has_zombie():
            seen.clear()
            continue
        zombies = await run_sync(_zombies)
        seen = {key: seen.get(key, 0) + 1 for key in zombies if not is_held(key[0])}
        for (pid, _), looks in seen.items():
            if looks >= LOOKS:
                _reap(pid)


def _has_zombie() -> bool:
    try:
        return bool(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:
        return False


def _zombies() -> list[tuple[int, int]]:
    own = os.getpid()
    return [
        (stat.pid, stat.started)
        for stat in procfs.everyone()
        if stat.parent == own and stat.state == "Z"
    ]


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
    log.debug("orphan reaped pid=%s", pid)
