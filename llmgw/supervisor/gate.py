"""An engine's process before it is one: an interpreter that waits for the word.

It becomes the engine once the ledger knows it. If the agent dies before that, or the
line can't be written, the gate closes and nothing was started.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from llmgw.errors import EngineError
from llmgw.supervisor import exec
from llmgw.supervisor.backend import Place
from llmgw.supervisor.launch import Launch

GATE = 3


# No later try goes better: the launch itself is wrong, or what it names is.
HOPELESS = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.ENOEXEC,
    errno.E2BIG,
    errno.EINVAL,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


def write(launch: Launch, place: Place, *, log: str = "") -> None:
    """The file that the exec step reads; EngineError, final, if it can't be said so.

    *log*: where output goes, if not open yet.
    """
    path = place.run / "launch"
    _refusal(place.run).unlink(missing_ok=True)
    try:
        path.write_bytes(_content(launch, place, log))
    except ValueError as error:
        raise EngineError(f"cannot be started: {error}", final=True) from error


def refused(run: Path) -> EngineError | None:
    """Why the last launch from there never became an engine; None: it did."""
    try:
        number, _, said = _refusal(run).read_text(errors="replace").partition(" ")
    except OSError:
        return None
    return EngineError(said, final=number.isdigit() and int(number) in HOPELESS)


def _refusal(run: Path) -> Path:
    return run / f"launch{exec.REFUSAL.decode()}"


def _content(launch: Launch, place: Place, log: str) -> bytes:
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
