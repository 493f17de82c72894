"""`llmgw plan`: what the agent would do next."""

import argparse
from typing import Any

import msgspec

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket, understood


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what the agent would do next, replica by replica",
        epilog="example: llmgw plan --json",
    )
    parser.add_argument("--json", action="store_true", help="as the agent says it")
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    actions = ask_once(arguments.socket, "plan")
    if arguments.json:
        print(msgspec.json.encode(actions).decode())
    elif not actions:
        print("nothing is wanted here")
    else:
        with understood(arguments.socket):
            lines = [f"{action['action']:<6} {action['name']}" for action in actions]
        print("\n".join(lines))
    return 0
