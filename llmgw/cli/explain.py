"""`llmgw explain`: what is in force on this machine, and where each value is from."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from llmgw.agent.resolve import Resolved, read
from llmgw.cli._file import add_file, file_of
from llmgw.cli.check import refused, say_warnings, told
from llmgw.config.dump import without_secrets, written
from llmgw.config.toml_value import toml_value
from llmgw.errors import ConfigError

_WIDEST = 40  # of the values that their origin stands beside


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="show every setting in force here, and where it is from",
        description="Fills in what this machine gives (names, addresses) and shows "
        "each value with its origin: file and line, default, or probe and how.",
        epilog="example: llmgw explain --without-files /etc/llmgw/agent.toml",
    )
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--without-files",
        action="store_true",
        help="do not open the certificates that the file names",
    )
    parser.add_argument(
        "--allow-unknown-keys",
        action="store_true",
        help="warn of keys that this version does not know, except under tls",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = read(
            file_of(arguments),
            without_files=arguments.without_files,
            allow_unknown_keys=arguments.allow_unknown_keys,
        )
    except ConfigError as error:
        return refused(error, as_json=arguments.json)
    if arguments.json:
        print(json.dumps(answer(found), indent=2))
        return 0
    say_warnings(found.warnings)
    for line in lines(found):
        print(line)
    return 0


def answer(found: Resolved) -> dict[str, Any]:
    """The answer of `--json`: durations are seconds, sizes bytes."""
    return {
        "ok": True,
        "config": msgspec.to_builtins(without_secrets(found.config)),
        "origin": msgspec.to_builtins(found.origin),
        "warnings": [told(fault, "key", "what", "fix") for fault in found.warnings],
    }


def lines(found: Resolved) -> Iterator[str]:
    """A line for each key: itself, its value and its origin, each below the other.

    A value that is longer than most has its origin on a line of its own.
    """
    values = written(without_secrets(found.config))
    rows: list[tuple[str, str, str]] = []
    for key, origin in found.origin.items():
        value: Any = values
        for part in key.split("."):
            value = value.get(part) if value is not None else None
        shown = "(unset)" if value is None else toml_value(value)
        rows.append((key, shown, str(origin)))
    first = max(len(key) for key, _, _ in rows)
    second = max(len(value) for _, value, _ in rows if len(value) <= _WIDEST)
    for key, shown, origin in rows:
        if len(shown) <= second:
            yield f"{key:{first}}  {shown:{second}}  {origin}"
        else:
            yield f"{key:{first}}  {shown}"
            yield f"{'':{first}}  {'':{second}}  {origin}"
