"""The last step before an engine: waits for the word, sets the rest, becomes it.

Run as a file, `python -I -S exec.py LAUNCH [GATE]`, and without a single import that
is not built in: an interpreter is up in 9 ms like this, in 18 ms once it imports json.
LAUNCH holds `key=value` fields, each ended by a NUL byte (`fields` writes them).
GATE is a descriptor that yields one byte when the ledger knows this process. It ends
without one if the agent died before that: then no engine starts that nobody knows of.
"""

import posix
import sys

# The module `signal` makes its names out of enums, and takes 3 ms to do it.
from _signal import (  # pyright: ignore[reportMissingImports]
    SIG_DFL,  # pyright: ignore[reportUnknownVariableType]
    SIGPIPE,  # pyright: ignore[reportUnknownVariableType]
    SIGXFSZ,  # pyright: ignore[reportUnknownVariableType]
)
from _signal import (  # pyright: ignore[reportMissingImports]
    signal as default,  # pyright: ignore[reportUnknownVariableType]
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # the agent's side only; typing costs 4 ms
    from collections.abc import Mapping, Sequence

CANNOT_EXECUTE = 126
# Beside LAUNCH, why there was no engine: its code alone might be the engine's own.
REFUSAL = b".refused"


def fields(
    argv: "Sequence[str]",
    env: "Mapping[str, str]",
    cwd: str,
    settings: "Mapping[str, str]",
) -> bytes:
    """The content of a LAUNCH file; ValueError names what holds a NUL byte.

    *settings*: `log` (a file that takes its output), `oom_score_adj`, `memlock`,
    `cpuset`.
    """
    parts = [f"{key}={value}" for key, value in settings.items()]
    parts += [f"cwd={cwd}", *(f"arg={arg}" for arg in argv)]
    parts += [f"env={key}={value}" for key, value in env.items()]
    for part in parts:
        if "\0" in part:
            raise ValueError(f"{part!r} holds a NUL byte")
    return b"".join(part.encode("utf-8", "surrogateescape") + b"\0" for part in parts)


def read(path: str) -> bytes:
    fd = posix.open(path, posix.O_RDONLY)
    parts: list[bytes] = []
    while part := posix.read(fd, 1 << 20):
        parts.append(part)
    posix.close(fd)
    return b"".join(parts)


def put(path: bytes, value: bytes) -> None:
    fd = posix.open(path, posix.O_WRONLY)
    posix.write(fd, value)
    posix.close(fd)


def refuse(path: bytes, why: bytes) -> None:
    try:
        fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, 0o640)
        posix.write(fd, why)
    except OSError:
        pass  # a full disk, or not ours to write: then it is tried again


def limit(settings: "dict[bytes, bytes]") -> None:
    """Holds this process, and so the engine, to its limits."""
    if path := settings.get(b"log"):
        append = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT
        log = posix.open(path, append, 0o640)
        posix.dup2(log, 1)
        posix.dup2(log, 2)
    if adj := settings.get(b"oom_score_adj"):
        put(b"/proc/self/oom_score_adj", adj)
    if cpuset := settings.get(b"cpuset"):
        posix.sched_setaffinity(0, [int(cpu) for cpu in cpuset.split(b",")])
    if b"memlock" in settings:
        import resource  # not built in everywhere, and few ask for it

        resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )


def main(arguments: list[str]) -> None:
    launch, *gate = arguments
    if gate and not posix.read(int(gate[0]), 1):
        return
    argv: list[bytes] = []
    env: dict[bytes, bytes] = {}
    settings: dict[bytes, bytes] = {}
    for part in read(launch).split(b"\0")[:-1]:
        key, _, value = part.partition(b"=")
        if key == b"arg":
            argv.append(value)
        elif key == b"env":
            name, _, content = value.partition(b"=")
            env[name] = content
        else:
            settings[key] = value
    step = b"set the limits of"
    try:
        limit(settings)
        step = b"enter the directory " + settings[b"cwd"] + b" of"
        posix.chdir(settings[b"cwd"])
        # An interpreter ignores these two, and an ignored signal is inherited: an
        # engine would never learn that the reader of its pipe has gone.
        default(SIGPIPE, SIG_DFL)
        default(SIGXFSZ, SIG_DFL)
        posix.closerange(3, 65536)
        step = b"execute"
        posix.execve(argv[0], argv, env)
    except OSError as error:
        reason = (error.strerror or "").encode()
        said = b"cannot %b %b: %b" % (step, argv[0], reason)
        posix.write(2, b"llmgw: %b\n" % said)
        refuse(launch.encode() + REFUSAL, b"%d %b" % (error.errno or 0, said))
    sys.exit(CANNOT_EXECUTE)


if __name__ == "__main__":
    main(sys.argv[1:])
