"""An engine's process before it is one: an interpreter that waits for the word.

It becomes the engine once the ledger knows it. If the agent dies before that, or the
line can't be written, the gate closes and nothing was started.
"""

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from llmgw.supervisor import exec
from llmgw.supervisor.backend import Place
from llmgw.supervisor.launch import Launch

GATE = 3


def content(launch: Launch, place: Place, *, log: str = "") -> bytes:
    """The file that the exec step reads. *log*: where output goes, if not open yet."""
    limits = launch.limits
    settings: dict[str, str] = {}
    if log:
        settings["log"] = log
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
