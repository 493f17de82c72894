"""The configuration file as an argument, and files that a command may not use."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmgw.config.load import default_path
from llmgw.errors import AS_ANOTHER_USER, LlmgwError

_HELP = "the configuration file (default: $LLMGW_CONFIG, /etc/llmgw/agent.toml)"


def add_config(parser: Any, **more: Any) -> None:
    """For a command that has another argument; `add_file` for all others."""
    parser.add_argument("--config", metavar="FILE", type=Path, help=_HELP, **more)


def add_file(parser: Any, *, required: bool = False, **more: Any) -> None:
    """FILE, or --config FILE as where there is another argument. Not both: which of
    the two counts nobody would guess.
    """
    named = _HELP.partition(" (")[0] if required else _HELP
    one = parser.add_mutually_exclusive_group(required=required)
    one.add_argument("file", metavar="FILE", type=Path, nargs="?", help=named)
    one.add_argument("--config", metavar="FILE", type=Path, help="the same", **more)


def file_of(arguments: Any) -> Path:
    return named_in(arguments) or default_path()


def named_in(arguments: Any) -> Path | None:
    file, config = getattr(arguments, "file", None), arguments.config
    if file is not None and config is not None:  # one before a verb, one behind it
        raise LlmgwError(f"{file} and {config} are both named", fix="name one of them")
    return file or config


def file_if_any(named: Path | None) -> Path | None:
    """The file to go by; None where nobody named one and there is none."""
    if named is not None:
        return named
    path = default_path()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # there is one, and reading it says why it cannot be used
    return path


@contextmanager
def named(done: str = "used", where: Path | None = None) -> Generator[None]:
    """LlmgwError for a file that the system does not let this user look at or change.

    One that has no name is *where*; without that it is the output, and not ours.
    """
    try:
        yield
    except OSError as error:
        path = error.filename or where
        if path is None:
            raise
        what = f"cannot be {done}: {error.strerror}"
        is_another = isinstance(error, PermissionError)
        fix = AS_ANOTHER_USER if is_another else ""
        raise LlmgwError(what, where=str(path), fix=fix) from error
