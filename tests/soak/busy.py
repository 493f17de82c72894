"""Heartbeats while a model loads: `python -m tests.soak.busy --seconds 60`.

T19: twice as many busy processes as cores, and one that writes to disk and syncs, at
the priority of the agent; the longest gap between two heartbeats has to stay under two
intervals. Measured, and no test: how late one is hangs on what else the machine does.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import anyio

from tests.fakes.control_plane import ControlPlane, Exchange

BEAT = 1.0
SPIN = "while True: pass"
WRITE = """
import os, sys
block = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
"""


@contextmanager
def hogs(folder: Path, spinning: int) -> Generator[None]:
    python = [sys.executable, "-c"]
    commands = [[*python, SPIN]] * spinning
    commands.append([*python, WRITE, str(folder / "written")])
    started = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


async def gaps(folder: Path, seconds: float, spinning: int) -> list[float]:
    """Between the heartbeats of a node in a process of its own, as they came."""
    one = ControlPlane()
    times: list[float] = []

    async def beaten(exchange: Exchange) -> None:
        times.append(anyio.current_time())
        await exchange.answer({"epoch": 1, "rev": 1})

    one.on["heartbeat"] = beaten
    async with anyio.create_task_group() as group:
        await group.start(one.run)
        words = [str(folder / "state"), str(BEAT), one.url]
        command = [sys.executable, "-m", "tests.fakes.node_process", *words]
        opened = anyio.open_process(command, stdout=subprocess.DEVNULL, stderr=None)  # noqa: TID251 -- it is to die here
        async with await opened as node:
            await one.hears("heartbeat", 2)
            with hogs(folder, spinning):
                await anyio.sleep(seconds)
            node.kill()
        group.cancel_scope.cancel()
    assert len(one.heard("register")) == 1, "the session was lost"
    return [after - before for before, after in pairwise(times)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, help="instead of --seconds")
    given = parser.parse_args()
    seconds = given.minutes * 60 if given.minutes else given.seconds
    spinning = 2 * (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="llmgw-busy-") as folder:
        found = anyio.run(gaps, Path(folder), seconds, spinning)
    worst, budget = max(found), 2 * BEAT
    verdict = "ok" if worst < budget else "missed"
    sys.stdout.write(
        f"{len(found)} gaps of {BEAT:g} s beside {spinning} busy processes and one "
        f"that writes, on {os.cpu_count()} cores: longest {worst:.2f} s, "
        f"under {budget:g} s: {verdict}\n"
    )
    return int(verdict == "missed")


if __name__ == "__main__":
    sys.exit(main())
