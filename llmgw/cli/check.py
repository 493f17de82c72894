"""`llmgw check`: is this file right? Looks at nothing but the file."""

import argparse
import json
import sys
from typing import Any

import msgspec

from llmgw.cli._file import add_file, file_of
from llmgw.config.dump import without_secrets
from llmgw.config.load import Loaded, load
from llmgw.config.origin import origins
from llmgw.errors import ConfigError, Fault


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="say whether a configuration file is right",
        description="Reports every fault of a file at once. Opens no other file, "
        "resolves no name and asks the machine nothing: safe in a build sandbox.",
        epilog="example: llmgw check /etc/llmgw/agent.toml",
    )
    add_file(parser, required=True)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--allow-unknown-keys",
        action="store_true",
        help="warn of keys that this version does not know, except under tls",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = load(
            file_of(arguments), allow_unknown_keys=arguments.allow_unknown_keys
        )
    except ConfigError as error:
        return refused(error, as_json=arguments.json)
    if arguments.json:
        print(json.dumps(accepted(found), indent=2))
        return 0
    say_warnings(found.warnings)
    print(f"{found.file}: right")
    return 0


def accepted(found: Loaded) -> dict[str, Any]:
    """The answer of `--json`: durations are seconds, sizes bytes."""
    return {
        "ok": True,
        "config": msgspec.to_builtins(without_secrets(found.config)),
        "origin": msgspec.to_builtins(origins(found)),
        "warnings": [told(fault, "key", "what", "fix") for fault in found.warnings],
    }


def refused(error: ConfigError, *, as_json: bool) -> int:
    """Say every fault; the exit code for a wrong file."""
    if as_json:
        names = ("file", "line", "key", "what", "fix")
        errors = [told(fault, *names) for fault in error.faults]
        print(json.dumps({"ok": False, "errors": errors}, indent=2))
    else:
        print(error, file=sys.stderr)
    return error.exit_code


def say_warnings(warnings: tuple[Fault, ...]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def told(fault: Fault, *names: str) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in names}
