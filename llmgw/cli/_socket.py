"""Where the agent's door is, for the commands that open it or knock."""

from pathlib import Path
from typing import Any

from llmgw.agent.door import default_path


def add_socket(parser: Any, what: str = "the agent's socket") -> None:
    parser.add_argument("--socket", type=Path, default=default_path(), help=what)
