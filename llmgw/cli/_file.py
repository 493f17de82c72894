"""The configuration file as an argument, for the commands that look at a node."""

from pathlib import Path
from typing import Any

from llmgw.config.load import default_path


def add_file(parser: Any) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="the configuration file (default: $LLMGW_CONFIG, /etc/llmgw/agent.toml)",
    )


def file_of(arguments: Any) -> Path:
    return arguments.file or default_path()
