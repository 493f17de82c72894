"""How fast a node is with another control plane: `python -m tests.bench.link`.

Everything over mutual TLS on loopback, and beside each number the same seconds spent on
a bare TCP connect, TLS handshake and one request in the same run: a slow machine
is slow at both. Prints a table; exits 1 if a budget is missed.
"""

import argparse
import contextlib
import logging
import os
import signal
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream

from llmgw import pki
from llmgw.config import keys
from llmgw.config.keys import Tls
from llmgw.errors import SessionError
from llmgw.session.dial import Dialer
from llmgw.session.link import Link
from llmgw.session.node import Identity
from llmgw.tls import Certificates
from tests.bench.plane import context
from tests.fakes.control_plane import ControlPlane
from tests.fakes.hosts import hosts, need_namespaces
from tests.fakes.linked import connected
from tests.fakes.node import FakeNode

MS = 1000.0
PATIENCE = 120.0  # 500 agents and their handshakes share this process
rows: list[tuple[str, str, str, str, bool]] = []


def row(
    what: str, values: list[float], probe: float, limit: float, budget: str
) -> None:
    """One line: the median is judged, the worst is shown."""
    middle, worst = statistics.median(values), max(values)
    numbers = f"{middle * MS:.1f} ms (worst {worst * MS:.1f}, n={len(values)})"
    rows.append((what, numbers, f"{middle / probe:.1f}", budget, middle <= limit))


class Process:
    """Control planes in a process, and what it prints."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)
        self.ports: list[int] = []

    async def line(self) -> list[str]:
        return (await self._lines.receive_until(b"\n", 65536)).decode().split()

    async def ready(self) -> None:
        self.ports = [int(word) for word in (await self.line())[1:]]

    def urls(self) -> tuple[str, ...]:
        return tuple(f"https://127.0.0.1:{port}" for port in self.ports)


@asynccontextmanager
async def plane(pki_dir: Path, *words: str) -> AsyncGenerator[Process]:
    command = [sys.executable, "-m", "tests.bench.plane", "--tls", str(pki_dir), *words]
    started = anyio.open_process(command, stdout=PIPE, stderr=None)  # noqa: TID251 -- it is to die here
    async with await started as process:
        try:
            one = Process(process)
            await one.ready()
            yield one
        finally:
            # One that was killed on purpose is gone already.
            with contextlib.suppress(ProcessLookupError):
                process.kill()


class Bench:
    def __init__(self, folder: Path, repeats: int) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.repeats = repeats
        pki.init(self.pki)
        pki.issue(self.pki, "cp", sans=("127.0.0.1", "::1"))
        made = pki.issue(self.pki, "n1")
        self.tls = Tls(
            cert_file=str(made.cert_file),
            key_file=str(made.key_file),
            ca_file=str(made.ca_file),
        )
        self._states = 0

    def link(self, *servers: str, base: float = 1.0, fail_back: float = 0.0) -> Link:
        self._states += 1
        return Link(
            Identity(
                node_id=f"n{self._states}", version="bench", mgmt_addr="127.0.0.1"
            ),
            servers,
            Certificates(self.tls, "n1"),
            keys.Link(fail_back_interval=fail_back),
            FakeNode(),
            self.folder / f"state{self._states}",
            heartbeat=5.0,
            reconnect_base=base,
            reconnect_max=30.0,
        )

    # What it is measured against -------------------------------------------------

    async def probe(self) -> float:
        """A bare connect, handshake, request and answer; the median, in seconds."""
        outside = ssl.create_default_context(cafile=self.tls.ca_file)
        outside.load_cert_chain(self.tls.cert_file or "", self.tls.key_file)
        times: list[float] = []
        async with plane(self.pki, "leader") as one:
            for _ in range(max(self.repeats, 20)):
                began = time.perf_counter()
                stream = await anyio.connect_tcp(
                    "127.0.0.1",
                    one.ports[0],
                    ssl_context=outside,
                    tls_hostname="127.0.0.1",
                )
                await stream.send(b"GET /v1/leader HTTP/1.1\r\nhost: x\r\n\r\n")
                await stream.receive()
                times.append(time.perf_counter() - began)
                await anyio.aclose_forcefully(stream)
        return statistics.median(times)

    # Failover --------------------------------------------------------------------

    async def killed(self, probe: float) -> None:
        """The leader is SIGKILLed; it comes back as the standby-to-be for the next."""
        times: list[float] = []
        async with AsyncExitStack() as stack:
            planes = [
                await stack.enter_async_context(plane(self.pki, "leader"))
                for _ in range(2)
            ]
            urls = [one.urls()[0] for one in planes]
            mine = self.link(*urls)
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(mine.run)
            for number in range(self.repeats):
                at = number % 2
                await self._held(mine, urls[at])
                began = time.perf_counter()
                planes[at].process.send_signal(signal.SIGKILL)
                await self._held(mine, urls[1 - at])
                times.append(time.perf_counter() - began)
                port = str(planes[at].ports[0])
                await planes[at].process.wait()
                planes[at] = await stack.enter_async_context(
                    plane(self.pki, f"leader:{port}")
                )
            group.cancel_scope.cancel()
        limit = probe + 0.05
        row(
            "leader SIGKILLed → accepted by the next",
            times,
            probe,
            limit,
            "probe + 50 ms",
        )

    async def standbys(self, probe: float) -> None:
        """Five standbys before the leader, against none, for one of them."""
        times: list[float] = []
        async with plane(self.pki, *["standby"] * 5, "leader") as one:
            for _ in range(self.repeats):
                alone = await self._joined(one.urls()[-1:])
                behind = await self._joined(one.urls())
                times.append((behind - alone) / 5)
        row("a standby's answer → the next server", times, probe, 0.02, "20 ms each")

    async def _joined(self, urls: tuple[str, ...]) -> float:
        mine = self.link(*urls)
        took = 0.0
        async with anyio.create_task_group() as group:
            began = time.perf_counter()
            group.start_soon(mine.run)
            await connected(mine)
            took = time.perf_counter() - began
            group.cancel_scope.cancel()
        return took

    async def goodbyes(self, probe: float) -> None:
        times: list[float] = []
        tls = await anyio.to_thread.run_sync(context, self.pki)
        planes = [ControlPlane(tls=tls) for _ in range(2)]
        async with anyio.create_task_group() as group:
            for one in planes:
                one.ping_s = 1.0
                await group.start(one.run)
            mine = self.link(planes[0].url, planes[1].url, base=0.01)
            group.start_soon(mine.run)
            for number in range(self.repeats):
                leader, other = planes[number % 2], planes[1 - number % 2]
                leader.standby, other.standby = False, False
                await self._held(mine, leader.url)
                await leader.streaming()
                leader.standby = True
                began = time.perf_counter()
                await leader.push({"t": "bye", "reason": "not_leader"})
                await self._held(mine, other.url)
                times.append(time.perf_counter() - began)
            group.cancel_scope.cancel()
        row("leader says bye → accepted elsewhere", times, probe, 0.1, "100 ms")

    async def black_holes(self, probe: float) -> None:
        """In namespaces, without TLS: packets to the leader vanish."""
        beat = 0.5
        times: list[float] = []
        with hosts("mgmt0") as (node, beyond):
            node.ip("address add 10.77.0.9/24 dev mgmt0")
            planes: list[ControlPlane] = []
            for address in ("10.77.0.1", "10.77.0.2"):
                beyond.ip(f"address add {address}/24 dev mgmt0")
                one = ControlPlane(host=address, sock=beyond.listen(address))
                one.ping_s = beat
                planes.append(one)
            words = [str(self.folder / "hole"), str(beat), *(one.url for one in planes)]
            command = node.python("tests.fakes.node_process", *words)
            async with anyio.create_task_group() as group:
                for one in planes:
                    await group.start(one.run)
                started = anyio.open_process(command, stdout=PIPE, stderr=None)  # noqa: TID251 -- it is to die here
                async with await started as process:
                    assert process.stdout
                    lines = BufferedByteReceiveStream(process.stdout)
                    for number in range(self.repeats):
                        here, there = planes[number % 2], planes[1 - number % 2]
                        await said(lines, here.url)
                        beats = len(here.heard("heartbeat"))
                        await here.hears("heartbeat", beats + 2)
                        beyond.filter(f"ip daddr {here.url[7:16]} drop")
                        began = time.perf_counter()
                        await said(lines, there.url)
                        times.append(time.perf_counter() - began)
                        beyond.heal()
                    process.kill()
                group.cancel_scope.cancel()
        limit = 3 * beat + 0.3
        budget = f"3 pings ({3 * beat:g} s) + 300 ms"
        row("black hole → accepted elsewhere", times, probe, limit, budget)

    async def _held(self, mine: Link, url: str) -> None:
        with anyio.fail_after(PATIENCE):
            number, status = await mine.status.newer_than(-1)
            while not (status.state == "connected" and status.server == url):
                number, status = await mine.status.newer_than(number)

    # A crowd ---------------------------------------------------------------------

    async def crowd(self, agents: int, election: float) -> None:
        """All lose their leader at once; the next leads *election* seconds later."""
        elect = ("--elect", str(election)) if election else ()
        role = "standby" if election else "leader"
        asked: list[int] = []
        times: list[float] = []
        async with (
            plane(self.pki, "leader") as old,
            plane(self.pki, role, *elect) as new,
            anyio.create_task_group() as group,
        ):
            urls = (*old.urls(), *new.urls())
            links = [self.link(*urls) for _ in range(agents)]
            for mine in links:
                group.start_soon(mine.run)
            for mine in links:
                await self._held(mine, urls[0])
            group.start_soon(self._count, new, asked)
            began = time.perf_counter()
            old.process.send_signal(signal.SIGKILL)
            async with anyio.create_task_group() as waiters:
                for mine in links:
                    waiters.start_soon(self._timed, mine, urls[1], began, times)
            await anyio.sleep(1.1)  # for the last of the lines it prints each second
            group.cancel_scope.cancel()
        last = max(times)
        busiest = max(asked)
        what = f"{agents} agents lose their leader, election {election:g} s: the last"
        numbers = f"{last:.2f} s (median {statistics.median(times):.2f})"
        rows.append((what, numbers, "", f"{2 + election:g} s", last <= 2 + election))
        shown = f"{busiest} of {sum(asked)} asked in the busiest second"
        rows.append((" … at the one server left", shown, "", "see docs/link.md", True))

    async def _count(self, new: Process, asked: list[int]) -> None:
        while True:
            words = await new.line()
            if words[0] == "asked":
                asked.append(int(words[1]))

    async def _timed(
        self, mine: Link, url: str, began: float, times: list[float]
    ) -> None:
        await self._held(mine, url)
        times.append(time.perf_counter() - began)

    # What is left behind ---------------------------------------------------------

    async def leaks(self, attempts: int) -> None:
        """Refused and half-open ones, by the thousand."""
        closed = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = closed.extra(anyio.abc.SocketAttribute.local_port)
        await closed.aclose()
        await self._leak("refused", f"https://127.0.0.1:{port}", attempts, 1.0)
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as mute:
            port = mute.extra(anyio.abc.SocketAttribute.local_port)

            async def hold(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    await anyio.sleep(0.2)

            async with anyio.create_task_group() as group:
                group.start_soon(mute.serve, hold, group)
                url = f"https://127.0.0.1:{port}"
                await self._leak("half-open", url, attempts, 0.05)
                group.cancel_scope.cancel()

    async def _leak(self, kind: str, url: str, attempts: int, limit: float) -> None:
        dialer = Dialer(Certificates(self.tls, "n1"), limit=limit, user_timeout=5.0)

        async def some(count: int) -> None:
            for _ in range(count):
                try:
                    await dialer.dial(url)
                except SessionError:
                    continue
                raise AssertionError("somebody answered")

        async def many(count: int) -> None:
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(some, count // 20)
            await anyio.sleep(0.3)  # the other end lets go after 0.2 s

        me = psutil.Process()
        await many(attempts // 4)
        files, memory = me.num_fds(), me.memory_info().rss
        await many(attempts)
        more_files, more = me.num_fds() - files, me.memory_info().rss - memory
        numbers = f"{more_files:+d} descriptors, {more / 1024:+.0f} KiB"
        flat = more_files <= 0 and more <= 2 * 1024 * 1024
        rows.append((f"{attempts} {kind} connects", numbers, "", "flat", flat))


async def said(lines: BufferedByteReceiveStream, url: str) -> None:
    mark = f'"server":"{url}"'.encode()
    with anyio.fail_after(20):
        while mark not in await lines.receive_until(b"\n", 1 << 20):
            pass


def table() -> str:
    lines = [
        "| what | measured | times the probe | budget | |",
        "|---|---|---|---|---|",
    ]
    for *words, good in rows:
        lines.append(f"| {' | '.join(words)} | {'ok' if good else 'MISSED'} |")
    return "\n".join(lines) + "\n"


async def main(repeats: int, agents: int, attempts: int) -> int:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        bench = await anyio.to_thread.run_sync(Bench, Path(folder), repeats)
        probe = await bench.probe()
        rows.append(
            (
                "TCP + TLS + one request (the probe)",
                f"{probe * MS:.1f} ms",
                "1.0",
                "",
                True,
            )
        )
        steps: list[Callable[[float], Awaitable[None]]] = [
            bench.killed,
            bench.standbys,
            bench.goodbyes,
        ]
        if os.geteuid() == 0:
            need_namespaces()
            steps.append(bench.black_holes)
        for step in steps:
            await step(probe)
        for election in (0.0, 1.0):
            await bench.crowd(agents, election)
        await bench.leaks(attempts)
    sys.stdout.write(table())
    return 0 if all(good for *_, good in rows) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--attempts", type=int, default=2000)
    args = parser.parse_args()
    sys.exit(anyio.run(main, args.repeats, args.agents, args.attempts))
