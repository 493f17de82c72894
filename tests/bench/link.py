"""How fast a node is with another control plane: `python -m tests.bench.link`.

Everything over mutual TLS on loopback, and beside each number the same seconds spent on
a bare TCP connect, TLS handshake and one request in the same run: a slow machine
is slow at both. Every agent in it has an engine, a process that counts signals. Prints
a table; exits 1 if a budget is missed. `--rows killed,crowd` for some of it.
"""

import argparse
import logging
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import msgspec
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream

from llmgw import pki
from llmgw.errors import SessionError
from llmgw.session.dial import Dialer
from llmgw.session.link import Link
from llmgw.tls import Certificates
from tests.bench.crowd import held, lose, plane
from tests.bench.linked import link, live, tls
from tests.bench.plane import context
from tests.fakes.control_plane import ControlPlane
from tests.fakes.hosts import hosts, need_namespaces
from tests.fakes.linked import connected
from tests.fakes.witness import Witness, witness

MS = 1000.0
A = {"id": "a", "generation": 1, "engine": "command"}
# One registration a second from each agent that has no leader, and a fifth more.
SHARE = 1.2
rows: list[tuple[str, str, str, str, bool]] = []


def row(
    what: str, values: list[float], probe: float, limit: float, budget: str
) -> None:
    """One line: the median is judged, the worst is shown."""
    middle, worst = statistics.median(values), max(values)
    numbers = f"{middle * MS:.1f} ms (worst {worst * MS:.1f}, n={len(values)})"
    rows.append((what, numbers, f"{middle / probe:.1f}", budget, middle <= limit))


class Bench:
    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.args = args
        self.repeats: int = args.repeats
        self.engine: Witness | None = None
        self.signals = 0
        pki.init(self.pki)
        pki.issue(self.pki, "cp", sans=("127.0.0.1", "::1"))
        pki.issue(self.pki, "n1")
        self.tls = tls(self.pki)
        self._states = 0

    def link(self, *servers: str, base: float = 1.0) -> Link:
        self._states += 1
        name = f"n{self._states}"
        pid = self._pid()
        return link(name, servers, self.tls, self.folder, engine=pid, base=base)

    def _pid(self) -> int:
        assert self.engine, "set by main before any row"
        return self.engine.pid

    def start(self, mine: Link, group: anyio.abc.TaskGroup) -> None:
        group.start_soon(live, mine, self._pid(), group)

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
            self.start(mine, group)
            for number in range(self.repeats):
                at = number % 2
                await self._held(mine, urls[at])
                await anyio.sleep(1.1)  # shorter ones, again and again, are flapping
                began = time.perf_counter()
                planes[at].kill()
                await self._held(mine, urls[1 - at])
                times.append(time.perf_counter() - began)
                port = str(planes[at].ports[0])
                await planes[at].program.process.wait()
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
            self.start(mine, group)
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
                one.replicas = [A]
                await group.start(one.run)
            mine = self.link(planes[0].url, planes[1].url, base=0.01)
            self.start(mine, group)
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
                one.replicas = [A]
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
        with anyio.fail_after(60):
            await held(mine, url)

    # A crowd ---------------------------------------------------------------------

    async def crowd(self, election: float) -> None:
        """All lose their leader at once; the next leads *election* seconds later."""
        agents: int = self.args.agents
        # In memory where there is such a place: every node has a disk of its own.
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            fates, signals = await lose(
                Path(folder),
                None if self.args.plain else self.pki,
                agents,
                processes=self.args.processes,
                election=election,
                repeats=self.repeats,
                limit=self.args.limit,
            )
        self.signals += signals
        last, limit = [max(fate.times) for fate in fates], 2 + election
        middle = statistics.median(last)
        what = f"{agents} agents lose their leader, election {election:g} s: the last"
        numbers = f"{middle:.2f} s (worst {max(last):.2f}, n={len(last)})"
        rows.append((what, numbers, "", f"{limit:g} s", middle <= limit))
        share, most = int(SHARE * agents), max(fate.busiest for fate in fates)
        what = " … the busiest second of the server that is left"
        numbers = f"{most} registrations at worst"
        budget = f"{share}: one an agent + 20 %"
        rows.append((what, numbers, "", budget, most <= share))
        cores = psutil.cpu_count() or 1
        spent = [
            statistics.median(values)
            for values in zip(
                *((f.agents_cpu, f.plane_cpu, f.others_cpu) for f in fates), strict=True
            )
        ]
        what = f" … processor time, of the {middle * cores:.1f} s in it"
        shown = [f"{seconds:.1f} s" for seconds in spent]
        numbers = f"agents {shown[0]}, that server {shown[1]}, all else {shown[2]}"
        rows.append((what, numbers, "", "", True))

    # What is left behind ---------------------------------------------------------

    async def leaks(self, probe: float) -> None:
        """Refused and half-open ones, by the thousand."""
        attempts: int = self.args.attempts
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

    async def all(self, names: list[str]) -> None:
        steps: dict[str, Callable[[float], Awaitable[None]]] = {
            "killed": self.killed,
            "standbys": self.standbys,
            "bye": self.goodbyes,
            "hole": self.black_holes,
            "crowd": lambda _: self.crowd(0.0),
            "election": lambda _: self.crowd(1.0),
            "leaks": self.leaks,
        }
        if unknown := [name for name in names if name not in steps]:
            sys.exit(f"no row is called {unknown[0]!r}: {', '.join(steps)} are")
        probe = await self.probe()
        what = "TCP + TLS + one request (the probe)"
        rows.append((what, f"{probe * MS:.1f} ms", "1.0", "", True))
        for name in names or steps:
            if name == "hole" and os.geteuid() != 0:
                continue
            await steps[name](probe)
        assert self.engine
        heard = self.signals + await self.engine.heard()
        rows.append(("signals to engines in all of it", f"{heard}", "", "0", not heard))


async def said(lines: BufferedByteReceiveStream, url: str) -> None:
    """Until it is with *url*; nothing on the way may have wanted the engine's end."""
    with anyio.fail_after(20):
        while True:
            news = msgspec.json.decode(await lines.receive_until(b"\n", 1 << 20))
            assert news["wanted"] in (None, 1), "the engine would have been stopped"
            if news["status"]["server"] == url:
                return


def table() -> str:
    lines = [
        "| what | measured | times the probe | budget | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for *words, budget, good in rows:
        verdict = ("ok" if good else "missed") if budget else ""
        lines.append(f"| {' | '.join([*words, budget])} | {verdict} |")
    return "\n".join(lines) + "\n"


async def main(args: argparse.Namespace) -> int:
    logging.disable(logging.WARNING)
    if os.geteuid() == 0:
        need_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        bench = await anyio.to_thread.run_sync(Bench, Path(folder), args)
        async with witness() as bench.engine:
            await bench.all([name for name in args.rows.split(",") if name])
    sys.stdout.write(table())
    return 0 if all(good for *_, good in rows) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2, help="that they live in")
    parser.add_argument("--attempts", type=int, default=2000)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a crowd")
    parser.add_argument("--plain", action="store_true", help="the crowd without TLS")
    parser.add_argument("--rows", default="", help="some of them, as killed,bye")
    sys.exit(anyio.run(main, parser.parse_args()))
