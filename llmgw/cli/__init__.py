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
from typing import Any

from llmgw import version
from llmgw.errors import LlmgwError


def names() -> tuple[str, ...]:
    """The commands, as typed."""
    return tuple(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    )


class _Parser(argparse.ArgumentParser):
    """Of what it does not know it speaks itself.

    argparse leaves that to the topmost parser, which shows a usage that says nothing of
    the command.
    """

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] -- a namespace of another class is not ours
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the command's `run` under `run`. Exits 2 on wrong usage."""
    parser = _Parser(
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
    return parser.parse_args(_with_values(argv))


def _with_values(argv: Sequence[str]) -> list[str]:
    """`--stop-after -5s` as `--stop-after=-5s`: argparse takes it for an option, and
    says only that a value is missing. No option of ours begins with a digit.
    """
    words: list[str] = []
    for number, word in enumerate(argv):
        if word == "--":
            return [*words, *argv[number:]]
        is_value = re.match(r"-\.?[0-9]", word) is not None
        if is_value and words and re.fullmatch(r"--[a-z0-9-]+", words[-1]):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


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
