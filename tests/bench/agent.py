"""What an agent costs, and how soon it is there: `python -m tests.bench.agent`.

The real program beside a control plane in this process, plain and over mutual TLS:
start to accepted, as a ratio to `python -c pass` in the same run; desired state sent to
the engine's first breath; memory and processor time when nothing happens. Prints a line
of JSON; exits 1 over a budget.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import psutil

from llmgw import pki
from tests.bench.linked import tls
from tests.bench.plane import context
from tests.fakes.control_plane import ControlPlane

STARTS, ENGINES, SETTLE = 10, 20, 20.0
BUDGETS = {
    "start_ratio": 20.0,
    "start_tls_ratio": 20.0,
    "exec_ms": 20.0,
    "idle_mib": 45.0,
    "idle_cpu_percent": 0.2,
}
# It tells its pid as soon as it runs. To open the pipe takes it no longer than to exec.
ENGINE = """#!/bin/sh
echo $$ > {pipe}
exec sleep 1000
"""


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipe = folder / "pipe"
        self.pki = folder / "pki"
        os.mkfifo(self.pipe)
        engine = folder / "engine"
        engine.write_text(ENGINE.format(pipe=self.pipe))
        engine.chmod(0o755)
        pki.init(self.pki)
        pki.issue(self.pki, "cp", sans=("127.0.0.1",))
        pki.issue(self.pki, "n1")
        self.engines: list[int] = []
        self._agents = 0
        # As where it is installed: compiled once, and not at each start.
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONDONTWRITEBYTECODE"
        } | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}

    @asynccontextmanager
    async def agent(self, plane: ControlPlane) -> AsyncGenerator[psutil.Process]:
        """It leaves as an operator stops it; engines stay, and are killed by `end`."""
        self._agents += 1
        process = await anyio.to_thread.run_sync(self._start, plane)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.wait, 20)

    def _start(self, plane: ControlPlane) -> "subprocess.Popen[bytes]":
        state = self.folder / f"state{self._agents}"
        lines = [
            'node_id = "n1"',
            f"servers = {json.dumps([plane.url])}",
            f'state_dir = "{state}"',
            f'engines_dir = "{self.folder}/engines"',
        ]
        if plane.url.startswith("https"):
            files = tls(self.pki)
            lines.append("[tls]")
            lines += [
                f'{name} = "{getattr(files, name)}"'
                for name in ("cert_file", "key_file", "ca_file")
            ]
        lines += [
            "[engines.command]",
            "enabled = true",
            f'path = "{self.folder}/engine"',
        ]
        file = self.folder / "agent.toml"
        file.write_text("\n".join(lines) + "\n")
        words = ["--config", str(file), "--socket", str(self.folder / "agent.sock")]
        with (self.folder / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "llmgw", "agent", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )

    async def starts(self, plane: ControlPlane) -> float:
        """Seconds from its start until it has been accepted; the median."""
        times: list[float] = []
        for number in range(STARTS + 1):
            before = plane.count()["register"]
            began = time.perf_counter()
            async with self.agent(plane):
                await plane.hears("register", before + 1)
                if number:  # the first one has it compiled
                    times.append(time.perf_counter() - began)
                await plane.hears("heartbeat")
        return statistics.median(times)

    async def execs(self, plane: ControlPlane) -> float:
        """Seconds from a snapshot that is sent until its new engine runs."""
        # Open for writing too, or it would be at its end whenever no engine writes.
        reader = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        times: list[float] = []
        async with self.agent(plane):
            await plane.streaming()
            await plane.hears("facts")
            for number in range(ENGINES):
                replica = {"id": f"e{number}", "generation": 1, "engine": "command"}
                plane.replicas.append(replica)
                plane.rev += 1
                began = time.perf_counter()
                await plane.push(plane.snapshot())
                with anyio.fail_after(20):
                    await anyio.wait_readable(reader)
                times.append(time.perf_counter() - began)
                self.engines.append(int(os.read(reader, 100)))
                await anyio.sleep(0.2)  # what it does after is no part of the next
        os.close(reader)
        return statistics.median(times)

    async def idle(self, plane: ControlPlane, seconds: float) -> tuple[float, float]:
        """Bytes that it holds, and the share of a core, with nothing to do."""
        async with self.agent(plane) as agent:
            await plane.hears("heartbeat")
            await anyio.sleep(SETTLE)
            before = sum(agent.cpu_times()[:2])
            await anyio.sleep(seconds)
            used = sum(agent.cpu_times()[:2]) - before
            return agent.memory_info().rss, used / seconds

    def python(self) -> float:
        began = time.perf_counter()
        command = [sys.executable, "-c", "pass"]
        subprocess.run(command, check=True, env=self.environment)
        return time.perf_counter() - began

    def end(self) -> None:
        for pid in self.engines:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@asynccontextmanager
async def plane(bench: Bench, *, secured: bool) -> AsyncGenerator[ControlPlane]:
    inside = context(bench.pki) if secured else None
    async with anyio.create_task_group() as group:
        one = ControlPlane(tls=inside, heartbeat_s=5.0)
        await group.start(one.run)
        yield one
        group.cancel_scope.cancel()


async def main(seconds: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        bench = await anyio.to_thread.run_sync(Bench, Path(folder))
        try:
            said = await measured(bench, seconds)
        finally:
            bench.end()
    over = [name for name, budget in BUDGETS.items() if said[name] > budget]
    sys.stdout.write(json.dumps({**said, "over": over}) + "\n")
    return int(bool(over))


async def measured(bench: Bench, seconds: float) -> dict[str, float]:
    said: dict[str, float] = {}
    times = [await anyio.to_thread.run_sync(bench.python) for _ in range(20)]
    base = statistics.median(times)
    said["python_ms"] = base * 1000
    async with plane(bench, secured=False) as one:
        start = await bench.starts(one)
        said |= {"start_ms": start * 1000, "start_ratio": start / base}
    async with plane(bench, secured=True) as one:
        start = await bench.starts(one)
        said |= {"start_tls_ms": start * 1000, "start_tls_ratio": start / base}
        memory, core = await bench.idle(one, seconds)
        said |= {"idle_mib": memory / 2**20, "idle_cpu_percent": core * 100}
    async with plane(bench, secured=True) as one:
        said["exec_ms"] = await bench.execs(one) * 1000
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="of idleness")
    sys.exit(anyio.run(main, parser.parse_args().seconds))
