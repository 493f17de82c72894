"""`llmgw drain`: start nothing new on this node, for as long as it takes."""

import argparse
from typing import Any

from llmgw.agent.door import ask_once
from llmgw.cli._duration import seconds
from llmgw.cli._socket import add_socket, understood
from llmgw.cli.status import drained


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "drain",
        help="start nothing new here, also after a restart, until `llmgw undrain`",
        description="Starts nothing new on this node, also after a restart of the "
        "agent, until `llmgw undrain`. What runs or is being started goes on, and is "
        "started again if it falls, until the control plane moves it away.",
        epilog="example: llmgw drain --stop-after 10m",
    )
    parser.add_argument(
        "--stop-after",
        metavar="DURATION",
        type=seconds,
        help='stop what still runs after so long, written as "10m" or "1h30m"; '
        "without it, engines go on",
    )
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    drain = ask_once(arguments.socket, "drain", stop_after=arguments.stop_after)
    with understood(arguments.socket):
        first, *more = drained(drain)
    print(f"draining: {first}")
    print("\n".join(more))
    return 0
