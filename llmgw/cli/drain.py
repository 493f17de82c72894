"""`llmgw drain`: start nothing new on this node, for as long as it takes."""

import argparse
from typing import Any

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket
from llmgw.config.units import duration


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "drain",
        help="start nothing new here, also after a restart, until `llmgw undrain`",
        epilog="example: llmgw drain --stop-after 10m",
    )
    parser.add_argument(
        "--stop-after",
        metavar="DURATION",
        type=duration,
        help="stop what still runs after so long; without it, engines go on",
    )
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    ask_once(arguments.socket, "drain", stop_after=arguments.stop_after)
    print("draining: nothing new is started here; `llmgw undrain` ends it")
    return 0
