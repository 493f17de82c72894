"""`llmgw forget-epoch`: follow a control plane that was rebuilt from nothing."""

import argparse
from typing import Any

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "forget-epoch",
        help="accept a control plane whose epoch is lower than one seen before",
        description="The agent refuses a leader with an epoch lower than the highest "
        "it has seen: such a one was deposed. After a control plane was rebuilt from "
        "nothing, forget the epoch on every node and then start the control plane "
        "again: one that was told of a higher epoch leads no more. Or start it again "
        "with --epoch-floor, and forget nothing. Engines are not touched.",
        epilog="example: llmgw forget-epoch",
    )
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    ask_once(arguments.socket, "forget_epoch")
    print("the highest epoch seen is forgotten")
    print("a control plane that was told of it leads once it is started again")
    return 0
