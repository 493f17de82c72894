"""The agent with its local door: what `llmgw agent` and `llmgw up` run."""

from pathlib import Path

import anyio
import anyio.abc

from llmgw.agent.door import Door
from llmgw.agent.ops import Ops
from llmgw.agent.run import Agent


async def serve(
    agent: Agent,
    socket: Path,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run *agent* until it leaves, answering at *socket* all the while.

    LlmgwError if another agent answers there: then nothing was started.
    """
    ops = Ops(agent)
    agent.view.answers = ops.answers()
    async with anyio.create_task_group() as group:
        await group.start(Door(socket, ops.table()).run)
        listen = agent.resolved.config.metrics.listen
        if listen is not None:
            # prometheus_client costs 9 MiB and 40 ms; few nodes without it pay them.
            from llmgw.agent import metrics

            group.start_soon(metrics.serve, agent, listen)
        await agent.run(task_status=task_status)
        group.cancel_scope.cancel()
