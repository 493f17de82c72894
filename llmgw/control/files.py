"""Files of the state directory: written whole or not at all, held by one process."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from llmgw import files
from llmgw.errors import LlmgwError

# What is wanted on a fleet is a tenth of it; the rest is a wrong file.
LARGEST = 64 * 1024 * 1024


def read(file: Path) -> bytes | None:
    """What is in *file*; None if there is no such file."""
    try:
        return files.read(file, LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(file, "read", error) from error


def write(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace *file* for good."""
    try:
        files.replace(file, content, mode=mode)
    except OSError as error:
        raise _unusable(file, "written", error) from error


@contextmanager
def held(state_dir: Path) -> Generator[None]:
    """Make *state_dir* and hold it: two on one would raise one another's epoch."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(
            state_dir / "control.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise _unusable(state_dir, "written", error) from error
    try:
        _lock(handle, state_dir)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, state_dir: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LlmgwError(
            "another control plane uses this state directory",
            where=str(state_dir),
            fix="give each its own --state-dir",
        ) from error


def _unusable(file: Path, done: str, error: OSError) -> LlmgwError:
    return LlmgwError(f"cannot be {done}: {error.strerror}", where=str(file))
