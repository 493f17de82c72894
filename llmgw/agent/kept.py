"""What a person said that must outlive the agent, and who may use its directory."""

import errno
import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from llmgw import files
from llmgw.errors import LlmgwError
from llmgw.salvage import understood
from llmgw.wire import UNDECODABLE

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Struct)

DRAIN = "drain.json"
UNDRAINED = "undrained.json"
STOPPED = "stopped.json"
LARGEST = 1024 * 1024


# Thirty years: what is to last longer has no end.
LONGEST = 1e9
Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]


class Drain(Struct, frozen=True, kw_only=True):
    """A person wants nothing new started here, and after *stop_after* s all stopped.

    *since*: when that was said, in seconds since the machine booted.
    """

    stop_after: Seconds | None = None
    since: float | None = None


class Undrained(Struct, frozen=True):
    """A person wants started what is wanted here, though the control plane drains the
    node: until it has ended its drain.
    """


class Stopped(Struct, frozen=True, kw_only=True):
    """What a person stopped, by the digest of what was wanted: wanted otherwise, it
    starts again.
    """

    digests: tuple[str, ...] = ()


@contextmanager
def held(state_dir: Path, *, by: str = "state_dir") -> Generator[None]:
    """Make *state_dir* and hold it: two agents on one would start everything twice.

    *by*: how a person names another one.
    """
    lock = state_dir / "agent.lock"
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        handle = _opened(lock)
    except OSError as error:
        raise LlmgwError(
            f"the state directory cannot be written: {error.strerror}",
            where=str(state_dir),
            fix=f"make it writable for the agent's user, or set {by}",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise LlmgwError(
            "another agent uses this state directory",
            where=str(state_dir),
            fix=f"stop that one, or give this one its own {by}",
        ) from error
    finally:
        os.close(handle)


def _opened(lock: Path) -> int:
    """To be held. On a disk that turned read-only the one that is there will do: what
    runs is adopted and told of, and only what would have to be written waits.
    """
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        if error.errno != errno.EROFS or not lock.exists():
            raise
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)


def read(path: Path, shape: type[T], unread: T | None = None) -> T | None:
    """The value kept at *path*; None if there is none or it cannot be understood.

    What cannot be understood is put aside under its name with `.unreadable`, and said;
    unless *unread* stands for it, because that something is there says enough.
    What another version wrote stands as far as it is understood: a node that a person
    drained would start everything, for the time that the drain was to last.
    """
    try:
        said = msgspec.json.decode(files.read(path, LARGEST), type=dict[str, Any])
        value, missed = understood(said, shape, {})
    except FileNotFoundError:
        return None
    except (OSError, *UNDECODABLE) as error:
        if unread is not None:
            log.warning("kept file stands, not read path=%s error=%s", path, error)
            return unread
        log.warning("kept file passed over path=%s error=%s", path, error)
        try:
            path.replace(path.with_name(path.name + ".unreadable"))
        except OSError:
            pass  # a read-only disk: it is passed over again next time
        return None
    if missed:
        log.warning(
            "kept file understood in part path=%s not=%s", path, ",".join(missed)
        )
    return value


def write(path: Path, value: Struct | None) -> None:
    """Keep *value* at *path*, None removes it. LlmgwError if the disk does not take it;
    then what was kept before still is.
    """
    try:
        if value is None:
            if path.is_dir():  # nobody's drain, but it stood for one
                path.replace(path.with_name(path.name + ".unreadable"))
            files.remove(path)
        else:
            files.replace(path, msgspec.json.encode(value))
    except OSError as error:
        raise LlmgwError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            fix="free space on that disk or make it writable",
        ) from error
