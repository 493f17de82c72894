"""How many agents one control plane carries: `python -m tests.bench.control`.

The reference control plane on one core, and on another two thousand agents that are
simulated: each with a session, its stream, facts, and a heartbeat every five seconds
over a connection of its own. Prints what a heartbeat's answer took; exits 1 over the
budget.
"""

import argparse
import json
import os
import random
import resource
import ssl
import statistics
import sys
import tempfile
import time
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import psutil

from llmgw import pki
from llmgw.wire import (
    AgentInfo,
    Fact,
    Facts,
    GpuLoad,
    Heartbeat,
    Load,
    Register,
    Registered,
)

BUDGET_MS = 100.0
BEAT = 5.0
REPLICA = {"id": "a", "engine": "command", "model": {"name": "m", "source": "local:/m"}}
LOAD = Load(
    cpu=0.31,
    memory_used=51_234_567_890,
    gpus=tuple(
        GpuLoad(uuid=f"GPU-{number:08d}", utilization=0.5, memory_used=40_123_456_789)
        for number in range(8)
    ),
)
FACTS = Facts(hash="f", facts={"os": Fact(source="bench", age_s=1.0, value="x" * 8000)})


class Agent:
    """As much of an agent as a control plane can see."""

    def __init__(self, name: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.name = name
        self.took: list[float] = []
        self.beats = False
        self._port = port
        self._tls = tls
        self._seq = 0

    async def run(self, group: anyio.abc.TaskGroup) -> None:
        wire = await self._dial()
        register = Register(
            protocol=(1,),
            node_id=self.name,
            instance=self.name,
            machine_id_hash=self.name,
            boot_id="b",
            agent=AgentInfo(version="bench"),
            hostname=self.name,
            mgmt_addr="127.0.0.1",
            mgmt_interface="lo",
            facts_hash="f",
        )
        answer = await self._ask(wire, "POST", "/v1/register", register)
        self._session = msgspec.json.decode(answer, type=Registered).session
        group.start_soon(self._hear, await self._dial())
        await self._ask(wire, "PUT", f"/v1/facts?session={self._session}", FACTS)
        self.beats = True
        deadline = time.perf_counter() + BEAT * random.random()
        while True:
            await anyio.sleep(max(deadline - time.perf_counter(), 0.0))
            self._seq += 1
            heartbeat = Heartbeat(
                session=self._session,
                seq=self._seq,
                epoch=1,
                rev_applied=1,
                facts_hash="f",
                load=LOAD,
            )
            began = time.perf_counter()
            await self._ask(wire, "POST", "/v1/heartbeat", heartbeat)
            self.took.append(time.perf_counter() - began)
            deadline += BEAT

    async def _dial(self) -> anyio.abc.ByteStream:
        if self._tls is None:
            return await anyio.connect_tcp("127.0.0.1", self._port)
        return await anyio.connect_tcp(
            "127.0.0.1", self._port, ssl_context=self._tls, tls_hostname="127.0.0.1"
        )

    async def _hear(self, wire: anyio.abc.ByteStream) -> None:
        target = f"/v1/desired?session={self._session}&have=0"
        await wire.send(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        while True:
            await wire.receive()

    async def _ask(
        self, wire: anyio.abc.ByteStream, method: str, target: str, body: object
    ) -> bytes:
        content = msgspec.json.encode(body)
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"
        )
        head += f"\r\ncontent-length: {len(content)}\r\n\r\n"
        await wire.send(head.encode() + content)
        got = await wire.receive()
        while b"\r\n\r\n" not in got:
            got += await wire.receive()
        answered, _, rest = got.partition(b"\r\n\r\n")
        assert answered.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")), got
        length = answered.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        while len(rest) < int(length or b"0"):
            rest += await wire.receive()
        return rest


class Bench:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder = folder
        self.args = args
        self.names = [f"n{number}" for number in range(args.agents)]
        self.contexts: dict[str, ssl.SSLContext] = {}
        desired = {name: [REPLICA] for name in self.names}
        (folder / "desired.json").write_text(json.dumps(desired))
        if args.tls:
            self._issue(folder / "pki")

    def _issue(self, folder: Path) -> None:
        pki.init(folder)
        pki.issue(folder, "cp", sans=("127.0.0.1",))
        for name in self.names:
            made = pki.issue(folder, name)
            outside = ssl.create_default_context(cafile=str(made.ca_file))
            outside.load_cert_chain(made.cert_file, made.key_file)
            self.contexts[name] = outside

    def command(self, *before: str) -> list[str]:
        words = [sys.executable, *before, "-m", "llmgw", "control"]
        words += ["--listen", "127.0.0.1:0", "--state-dir", str(self.folder / "cp")]
        words += ["--desired-file", str(self.folder / "desired.json")]
        words += ["--heartbeat-s", str(BEAT)]
        if self.args.tls:
            made = self.folder / "pki"
            words += ["--tls-cert", str(made / "cp.crt")]
            words += ["--tls-key", str(made / "cp.key")]
            words += ["--tls-ca", str(made / "ca.crt")]
        return words

    async def run(self) -> int:
        started = anyio.open_process(self.command(), stdout=PIPE, stderr=PIPE)  # noqa: TID251 -- it is to end here
        async with await started as process:
            try:
                cores = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(process.pid, cores[:1])
                os.sched_setaffinity(0, cores[1:] or cores)
                return await self._measure(process)
            finally:
                process.kill()

    async def _measure(self, process: anyio.abc.Process) -> int:
        agents: list[Agent] = []
        spent: dict[str, float] = {}
        async with anyio.create_task_group() as group:
            port = await serving(process, group)
            for name in self.names:
                agents.append(Agent(name, port, self.contexts.get(name)))
                group.start_soon(agents[-1].run, group)
                await anyio.sleep(self.args.ramp / len(self.names))
            with anyio.fail_after(60):
                while not all(agent.beats for agent in agents):
                    await anyio.sleep(0.1)
            for agent in agents:
                agent.took.clear()
            spent = await self._spent(psutil.Process(process.pid))
            group.cancel_scope.cancel()
        took = sorted(took * 1000 for agent in agents for took in agent.took)
        p99 = statistics.quantiles(took, n=100, method="inclusive")[98]
        said = {
            "agents": self.args.agents,
            "tls": self.args.tls,
            "heartbeats": len(took),
            "p50_ms": statistics.median(took),
            "p99_ms": p99,
            "worst_ms": took[-1],
            **spent,
        }
        sys.stdout.write(json.dumps(said) + "\n")
        due = self.args.agents * self.args.seconds / BEAT
        return int(p99 > BUDGET_MS or len(took) < 0.98 * due)

    async def _spent(self, plane: psutil.Process) -> dict[str, float]:
        """Of a core, while the heartbeats go on; and memory at the end of it."""
        before, mine = sum(plane.cpu_times()[:2]), time.process_time()
        await anyio.sleep(self.args.seconds)
        used = sum(plane.cpu_times()[:2]) - before
        return {
            "control_plane_core": used / self.args.seconds,
            "simulation_core": (time.process_time() - mine) / self.args.seconds,
            "control_plane_mib": plane.memory_info().rss / 2**20,
        }


async def serving(process: anyio.abc.Process, group: anyio.abc.TaskGroup) -> int:
    """Its port, once it says where it serves; what it says then is read and dropped."""
    assert process.stdout
    assert process.stderr
    found: list[int] = []
    known = anyio.Event()

    async def read(stream: anyio.abc.ByteReceiveStream) -> None:
        said = b""
        async for part in stream:
            said += part
            mark = said.find(b"127.0.0.1:")
            if not found and mark >= 0 and b"\n" in said[mark:]:
                digits = said[mark + 10 :].split(b"\n")[0].split()[0]
                found.append(int(digits.rstrip(b"/\"'")))
                known.set()
            if found:
                said = b""

    group.start_soon(read, process.stdout)
    group.start_soon(read, process.stderr)
    with anyio.fail_after(20):
        await known.wait()
    return found[0]


async def main(args: argparse.Namespace) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        bench = await anyio.to_thread.run_sync(Bench, Path(folder), args)
        return await bench.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ramp", type=float, default=20.0, help="until all are here")
    parser.add_argument("--tls", action="store_true", help="with a certificate each")
    sys.exit(anyio.run(main, parser.parse_args()))
