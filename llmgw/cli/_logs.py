"""A replica's log where no agent is that could be asked for it: engines outlive it."""

import os
import sys
from argparse import Namespace
from pathlib import Path

import anyio

from llmgw.cli._file import file_if_any, named, named_in
from llmgw.config import load
from llmgw.config.address import quote
from llmgw.errors import LlmgwError
from llmgw.supervisor.files import log_path, logged
from llmgw.supervisor.logs import Logs


def is_without_agent(error: LlmgwError) -> bool:
    """Whether nobody listens at the door, and not that it says no."""
    return isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError))


def read(arguments: Namespace, error: LlmgwError) -> None:
    """Print it as the agent would. *error*: why there is none to ask."""
    name: str = arguments.replica
    state_dir = _state_dir(arguments)
    path = log_path(state_dir, name)
    with named("read", path):
        if name not in _logged(state_dir):
            known = ", ".join(_logged(state_dir)) or "none"
            raise LlmgwError(
                f"no agent answers, and no log of {quote(name[:80])} is here",
                where=str(log_path(state_dir, "x").parent),
                fix=f"logs are here of {known}; {error.fix}",
            )
        print(f"no agent answers at {error.where}: read from {path}", file=sys.stderr)
        anyio.run(_print, path, bool(arguments.follow))


def _state_dir(arguments: Namespace) -> Path:
    file = file_if_any(named_in(arguments))
    config = load.unwritten() if file is None else load.load(file).config
    return Path(config.state_dir)


def _logged(state_dir: Path) -> tuple[str, ...]:
    """PermissionError where this user may not look, which is not that there is none."""
    try:
        with os.scandir(log_path(state_dir, "x").parent):
            return logged(state_dir)
    except FileNotFoundError:
        return ()


async def _print(path: Path, follow: bool) -> None:
    logs = Logs(0, 0, tuple)
    async for piece in logs.read(path, follow=follow):
        print(piece.decode(errors="replace"), end="", flush=True)
