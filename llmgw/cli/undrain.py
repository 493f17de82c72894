"""`llmgw undrain`: what is wanted on this node starts again."""

import argparse
from collections.abc import Iterator
from typing import Any

from llmgw.agent.door import ask_once
from llmgw.cli._socket import add_socket, understood


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "undrain",
        help="end a drain: what is wanted here starts again",
        description="Ends a drain, also one that the control plane wants: that one is "
        "passed over until it has ended. What a person stopped stays stopped.",
        epilog="example: llmgw undrain",
    )
    add_socket(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    answer = ask_once(arguments.socket, "undrain")
    with understood(arguments.socket):
        text = "\n".join(_lines(answer["drain"], answer["held"]))
    print(text)
    return 0


def _lines(before: dict[str, Any] | None, held: list[str]) -> Iterator[str]:
    if before is None:
        yield "this node was not draining: nothing has changed"
        return
    yield "draining has ended: what is wanted here starts again"
    if before["by_control"]:
        yield "the control plane still wants this node drained; that is passed over"
    for name in held:
        again = f"`llmgw engines start {name}` lets it run again"
        yield f"{name} was stopped by a person and stays so; {again}"
