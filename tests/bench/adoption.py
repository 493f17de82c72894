"""How long fifty engines take to be adopted: `python -m tests.bench.adoption`.

Prints the median of some rounds beside that of `python -c pass` in the same run, and
exits 1 over the budget of 200 ms.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from llmgw.config import keys
from llmgw.supervisor.supervisor import Supervisor
from tests.fakes.sleepers import sleepers

ENGINES, ROUNDS, BUDGET_MS = 50, 7, 200.0


async def adopted(state_dir: Path) -> float:
    supervisor = Supervisor(keys.Supervisor(), state_dir)
    took = float("inf")
    async with anyio.create_task_group() as group:
        begun = time.perf_counter()
        await group.start(supervisor.run)
        took = time.perf_counter() - begun
        assert {status.adopted for status in supervisor.statuses()} == {True}
        group.cancel_scope.cancel()
    return took * 1000


def python() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begun) * 1000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, sleepers(Path(folder), ENGINES):
        rounds = [anyio.run(adopted, Path(folder)) for _ in range(ROUNDS)]
    median = statistics.median(rounds)
    base = statistics.median(python() for _ in range(ROUNDS))
    said = {"engines": ENGINES, "adopted_ms": median, "python_ms": base}
    sys.stdout.write(json.dumps({**said, "ratio": median / base}) + "\n")
    return int(median > BUDGET_MS)


if __name__ == "__main__":
    sys.exit(main())
