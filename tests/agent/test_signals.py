"""A signal is heard whatever the agent is doing about the last one."""

import os
import signal
import threading
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.agent import resolve
from llmgw.agent.resolve import Resolved
from llmgw.agent.run import Agent


async def test_an_agent_whose_file_is_on_a_dead_mount_leaves_when_told_to(
    tmp_path: Path,
) -> None:
    """It read the file again for as long as the mount was dead, and heard no more."""
    file = tmp_path / "agent.toml"
    text = f'node_id = "n1"\nservers = ["127.0.0.1:1"]\nstate_dir = "{tmp_path}"\n'
    text += f'model_dirs = ["{tmp_path}"]\nengines_dir = "{tmp_path}"\n'
    await anyio.to_thread.run_sync(file.write_text, text)
    resolved = await anyio.to_thread.run_sync(resolve.read, file)
    asked, back = threading.Event(), threading.Event()

    def read() -> Resolved:
        asked.set()
        back.wait(30)
        return resolved

    agent = await anyio.to_thread.run_sync(lambda: Agent(resolved, read=read))
    try:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                await group.start(agent.signals)
                async with anyio.create_task_group() as work:
                    await work.start(agent.run)
                    os.kill(os.getpid(), signal.SIGHUP)
                    await anyio.to_thread.run_sync(asked.wait)
                    os.kill(os.getpid(), signal.SIGTERM)
                group.cancel_scope.cancel()
    finally:
        back.set()
