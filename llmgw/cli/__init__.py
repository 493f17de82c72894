"""The commands. A file here is a command; adding one registers nothing.

Each module has `add_parser(commands)`, which names itself, and `run(arguments)`,
which returns the exit code: 0 well, 1 fault, 2 usage, 78 wrong configuration.
"""

import argparse
import pkgutil
import re
from collections.abc import Sequence
from importlib import import_module, metadata
from types import ModuleType

from llmgw import version
from llmgw.errors import LlmgwError


def names() -> tuple[str, ...]:
    """The commands, as typed."""
    return tuple(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the command's `run` under `run`. Exits 2 on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="llmgw",
        description="One small agent per machine turns bare metal into one LLM fleet.",
        epilog="example: llmgw up --demo",
    )
    parser.add_argument("--version", action="version", version=f"llmgw {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    # Only the command that was asked for is imported: `llmgw agent` starts without
    # what `llmgw survey` draws its tables with.
    known = names()
    wanted = [argv[0]] if argv and argv[0] in known else known
    for name in wanted:
        try:
            command = _command(name)
        except LlmgwError as error:
            if name in argv:
                raise
            commands.add_parser(name, help=f"not installed: {error.fix}")
        else:
            command.add_parser(commands)
    return parser.parse_args(argv)


def _command(name: str) -> ModuleType:
    """LlmgwError names the extra that this installation would need for it."""
    try:
        return import_module(f"{__name__}.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        extra = _extra_with(error.name or "")
        if extra is None:
            raise
        raise LlmgwError(
            f"llmgw {name} needs {error.name}, which is not installed",
            fix=f"pip install 'llmgw[{extra}]'",
        ) from error


def _extra_with(module: str) -> str | None:
    """The smallest word that brings it, as pyproject.toml has them."""
    try:
        needs = metadata.requires("llmgw") or []
    except metadata.PackageNotFoundError:  # run from a copied tree
        return None
    for need in needs:
        name, extra = (
            re.match(r"[\w.-]+", need),
            re.search(r"extra == [\"'](\w+)", need),
        )
        if name and extra and name[0].lower().replace("-", "_") == module:
            return extra[1]
    return None
