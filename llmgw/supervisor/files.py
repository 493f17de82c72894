"""Where an engine's files are, and what is put there before it starts."""

import os
from pathlib import Path
from typing import Any

import msgspec

from llmgw.errors import EngineError
from llmgw.supervisor.backend import Place
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, unwritable

# All that an engine gets of the agent's environment: proxies and credentials stay.
PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "NIX_SSL_CERT_FILE",
)


def run_dir(state_dir: Path, id: str) -> Path:
    return state_dir / "run" / id


def log_path(state_dir: Path, id: str) -> Path:
    return state_dir / "logs" / f"{id}.log"


def logged(state_dir: Path) -> tuple[str, ...]:
    """The ids that have a log, also of what ran here before."""
    return tuple(
        sorted(path.stem for path in log_path(state_dir, "").parent.glob("*.log"))
    )


def lay_out(state_dir: Path, id: str, launch: Launch, tags: dict[str, str]) -> Place:
    """Folders, the launch's own files, the environment. EngineError if it can't be.

    Services without HOME or a cache directory are what some engines die of.
    """
    run = run_dir(state_dir, id)
    cache = state_dir / "cache"
    where = log_path(state_dir, id)
    try:
        for folder in (run / "tmp", cache, where.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for file in launch.files:
            path = run / file.path
            if not path.resolve().is_relative_to(run.resolve()):
                raise EngineError(
                    f"{file.path} is not below the run directory", final=True
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=file.mode)
            path.chmod(file.mode)
            path.write_text(file.content)
    except OSError as error:
        raise unwritable(error, Path(str(error.filename or run))) from error
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(run),
        "TMPDIR": str(run / "tmp"),
        "XDG_CACHE_HOME": str(cache),
        **tags,
    }
    return Place(run=run, log=where, env=env)


def replaced(entry: Entry, **changes: Any) -> Entry:
    return msgspec.structs.replace(entry, **changes)
