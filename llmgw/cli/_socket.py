"""Where the agent's door is, for the commands that open it or knock."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmgw.agent.door import default_path
from llmgw.errors import LlmgwError


def add_socket(parser: Any, what: str = "the agent's socket") -> None:
    parser.add_argument("--socket", type=Path, default=default_path(), help=what)


@contextmanager
def understood(path: Path) -> Generator[None]:
    """What is made here of the agent's answer. LlmgwError if it is of another shape:
    a package that was upgraded asks an agent that was not restarted.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LlmgwError(
            "answers as no agent of this version does",
            where=str(path),
            fix="restart the agent, engines go on; or ask with --json",
        ) from error
