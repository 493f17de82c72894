"""`llmgw agent`: the daemon."""

import argparse
import logging
from pathlib import Path
from typing import Any

import anyio

from llmgw.agent import kept
from llmgw.agent.daemon import serve
from llmgw.agent.notify import Systemd
from llmgw.agent.resolve import Resolved
from llmgw.agent.resolve import read as read_file
from llmgw.agent.run import Agent
from llmgw.cli._file import add_file, file_of
from llmgw.cli._socket import add_socket
from llmgw.errors import ConfigError, LlmgwError
from llmgw.telemetry import set_up_logging

log = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "agent",
        help="run the node agent",
        epilog="example: llmgw agent --config /etc/llmgw/agent.toml",
    )
    add_file(parser)
    add_socket(parser, "the local door's socket")
    parser.add_argument(
        "--allow-unknown-keys",
        action="store_true",
        help="warn of keys this version does not know, except under tls",
    )
    parser.add_argument(
        "--log-format", choices=("auto", "text", "json"), default="auto"
    )
    parser.add_argument("--verbose", action="store_true", help="say more")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    level = "debug" if arguments.verbose else "info"
    set_up_logging(arguments.log_format, level=level)

    def read() -> Resolved:
        unknown: bool = arguments.allow_unknown_keys
        return read_file(file_of(arguments), allow_unknown_keys=unknown)

    try:
        resolved = read()
    except LlmgwError as error:
        # What `systemctl status` shows as long as the unit stays failed.
        Systemd().status(f"not started: {_in_a_line(error)}")
        raise
    for warning in resolved.warnings:
        log.warning("%s", warning)
    with kept.held(Path(resolved.config.state_dir)):
        anyio.run(_main, Agent(resolved, read=read), arguments.socket)
    return 0


async def _main(agent: Agent, socket: Path) -> None:
    async with anyio.create_task_group() as group:
        await group.start(agent.signals)
        await serve(agent, socket)
        group.cancel_scope.cancel()


def _in_a_line(error: LlmgwError) -> str:
    first, *_ = str(error).splitlines()
    return first + (error.and_more if isinstance(error, ConfigError) else "")
