"""`llmgw undrain`: what is wanted on this node starts again."""

import argparse
from typing import Any

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "undrain",
        help="end a drain: what is wanted here starts again",
        epilog="example: llmgw undrain",
    )
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    ask_once(arguments.socket, "undrain")
    print("not draining")
    return 0
