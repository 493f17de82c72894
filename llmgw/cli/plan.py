"""`llmgw plan`: what the agent would do next."""

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket, understood


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="what the agent would do next, replica by replica",
        description="What the agent would do next, replica by replica: start, stop or "
        "keep it; and of what is wanted and gets nothing of that, who holds it (hold) "
        "or what it waits for (wait).",
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
            lines = [line for action in actions for line in _lines(action)]
        print("\n".join(lines))
    return 0


def _lines(action: dict[str, str]) -> Iterator[str]:
    """What is done for one replica; for one that waits, why and how that ends."""
    why = f": {action['why']}" if action.get("why") else ""
    yield f"{action['action']:<6} {action['name']}{why}"
    if action.get("fix"):
        yield f"       {action['fix']}"
