"""The commands. A file here is a command; adding one registers nothing.

Each module has `add_parser(commands)`, which names itself, and `run(arguments)`,
which returns the exit code: 0 well, 1 fault, 2 usage, 78 wrong configuration.
"""

import argparse
import pkgutil
from collections.abc import Sequence
from importlib import import_module

from llmgw import version


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
        import_module(f"{__name__}.{name.replace('-', '_')}").add_parser(commands)
    return parser.parse_args(argv)
