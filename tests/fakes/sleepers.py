"""Processes that stand in a ledger as engines of an agent that is gone."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import REPLICA, TAG, Entry, Identity, Ledger


@contextmanager
def sleepers(state_dir: Path, count: int) -> Generator[list[int]]:
    """Their pids; all have ended when it is left."""
    ledger = Ledger(state_dir)
    ledger.open()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            id = f"fake-{number}"
            process = subprocess.Popen(
                ["sleep", "60"],
                env={TAG: ledger.tag, REPLICA: id},
                start_new_session=True,
            )
            processes.append(process)
            identity = Identity.of(process.pid)
            assert identity
            entry = Entry(
                machine=ledger.machine,
                id=id,
                generation=1,
                digest="d1",
                identity=identity,
                launch=Launch(argv=("sleep", "60")),
            )
            ledger.write(entry)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
