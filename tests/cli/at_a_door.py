"""The command line, and a door that answers it as it is told."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.agent.door import Answers, Door
from llmgw.cli import parse


def llmgw(*argv: str | Path) -> int:
    arguments = parse([str(one) for one in argv])
    return arguments.run(arguments)


async def at_a_door(
    path: Path, ops: Mapping[str, Answers], *commands: tuple[str | Path, ...]
) -> None:
    """Each of *commands* asks the door at *path*, and ends well."""
    async with anyio.create_task_group() as group:
        await group.start(Door(path, ops).run)
        with anyio.fail_after(10):
            for words in commands:
                done = partial(llmgw, *words, "--socket", path)
                assert await anyio.to_thread.run_sync(done) == 0
        group.cancel_scope.cancel()
