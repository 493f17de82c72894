"""Many agents that lose their leader in the same instant.

As a program, `python -m tests.bench.crowd --folder F [--pki P] --first I --agents N
URL...`, some of the crowd: links in one process, with one engine that counts signals.
Prints `held` when all are with one server; then the time at which each is with the
other, `gone` and the seconds of processor time that it took, and `held` again. At the
end of its input it prints the number of signals, and ends.
"""

import argparse
import gc
import logging
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import anyio
import anyio.abc
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from llmgw.session.link import Link
from tests.bench.linked import link, live, tls
from tests.bench.plane import say
from tests.fakes.witness import witness

NO_FULL_ONE = 1_000_000
PATIENCE = 120.0  # the whole crowd and its handshakes share this machine


class Process:
    """A program that is told and tells lines."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.process = process
        self._in = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def tell(self, line: str) -> None:
        await self._in.send(line.encode() + b"\n")

    async def end(self) -> None:
        await self._in.aclose()

    async def line(self) -> list[str]:
        return (await self._lines.receive_until(b"\n", 65536)).decode().split()


@asynccontextmanager
async def program(module: str, *words: str) -> AsyncGenerator[Process]:
    command = [sys.executable, "-m", module, *words]
    started = anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None)  # noqa: TID251 -- it is to die here
    async with await started as process:
        try:
            yield Process(process)
        finally:
            if process.returncode is None:
                process.kill()


class Plane(Struct):
    """A process with control planes in it."""

    program: Process
    ports: list[int]
    scheme: str

    def urls(self) -> tuple[str, ...]:
        return tuple(f"{self.scheme}://127.0.0.1:{port}" for port in self.ports)

    async def elect(self) -> None:
        await self.program.tell("elect")

    def kill(self) -> None:
        self.program.process.send_signal(signal.SIGKILL)

    async def asked(self) -> tuple[int, int, float]:
        """Registrations since the last time, in their busiest second, and seconds of
        processor time.
        """
        await self.program.tell("asked")
        _, asked, busiest, used = await self.program.line()
        return int(asked), int(busiest), float(used)


@asynccontextmanager
async def plane(pki: Path | None, *words: str) -> AsyncGenerator[Plane]:
    secured = ["--tls", str(pki)] if pki else []
    async with program("tests.bench.plane", *secured, *words) as one:
        ports = [int(word) for word in (await one.line())[1:]]
        yield Plane(one, ports, "https" if pki else "http")


class Fate(Struct):
    """What became of the crowd: seconds from the loss until each was accepted.

    *others_cpu*: processor time of all that is not the crowd or its server.
    """

    times: list[float]
    asked: int
    busiest: int
    agents_cpu: float
    plane_cpu: float
    others_cpu: float


class Crowd(Struct):
    parts: list[Process]

    async def held(self) -> None:
        for one in self.parts:
            assert await one.line() == ["held"]
        await anyio.sleep(
            2
        )  # streams, facts and first heartbeats; a session that lasts

    async def lose(self, old: Plane, new: Plane, election: float) -> Fate:
        await new.asked()
        if not election:
            await new.elect()
        began, before = time.monotonic(), busy()
        old.kill()
        times: list[float] = []
        used: list[float] = []

        async def gather(one: Process) -> None:
            while (words := await one.line())[0] == "at":
                times.append(float(words[1]) - began)
            used.append(float(words[1]))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for one in self.parts:
                    group.start_soon(gather, one)
                if election:
                    await anyio.sleep(election)
                    await new.elect()
        asked, busiest, plane_cpu = await new.asked()
        others = busy() - before - sum(used) - plane_cpu
        return Fate(times, asked, busiest, sum(used), plane_cpu, others)

    async def signals(self) -> int:
        heard = 0
        for one in self.parts:
            await one.end()
            while (words := await one.line())[0] != "signals":
                pass
            heard += int(words[1])
        return heard


async def lose(
    folder: Path,
    pki: Path | None,
    agents: int,
    *,
    processes: int,
    election: float,
    repeats: int,
    limit: float,
) -> tuple[list[Fate], int]:
    """Kill the leader of them all; the next leads *election* seconds later. Again and
    again, though no more after *limit* seconds; and how many signals their engines got
    in all of it."""
    end = time.monotonic() + limit
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        # Were there two that lead, who waits for the busy one would take the other.
        old, new = await start(plane(pki, "leader")), await start(plane(pki, "standby"))
        parts: list[Process] = []
        for number in range(processes):
            words = ["--folder", str(folder), *(["--pki", str(pki)] if pki else [])]
            words += ["--first", str(number * agents), "--agents"]
            words += [str(agents // processes), *old.urls(), *new.urls()]
            parts.append(await start(program("tests.bench.crowd", *words)))
        crowd = Crowd(parts)
        fates: list[Fate] = []
        for _ in range(repeats):
            if time.monotonic() > end:
                break
            await crowd.held()
            fates.append(await crowd.lose(old, new, election))
            sys.stderr.write(f"all {agents} back in {max(fates[-1].times):.2f} s\n")
            await old.program.process.wait()
            old, new = new, await start(plane(pki, f"standby:{old.ports[0]}"))
        return fates, await crowd.signals()


def busy() -> float:
    """Seconds of processor time that this machine has spent on anything."""
    spent = psutil.cpu_times()
    return spent.user + spent.nice + spent.system


# As a program ------------------------------------------------------------------------


async def held(mine: Link, server: str) -> None:
    number, status = await mine.status.newer_than(-1)
    while not (status.state == "connected" and status.server == server):
        number, status = await mine.status.newer_than(number)


async def main(args: argparse.Namespace) -> None:
    logging.disable(logging.WARNING)
    files = tls(args.pki) if args.pki else None
    async with witness() as engine, anyio.create_task_group() as group:
        names = [f"n{args.first + number}" for number in range(args.agents)]
        links = [
            link(name, tuple(args.servers), files, args.folder, engine=engine.pid)
            for name in names
        ]
        for mine in links:
            group.start_soon(live, mine, engine.pid, group)
        group.start_soon(tell, links, args.servers)
        await anyio.wrap_file(sys.stdin).read()
        say("signals", await engine.heard())
        group.cancel_scope.cancel()


async def tell(links: list[Link], servers: list[str]) -> None:
    here, there = servers
    for mine in links:
        await held(mine, here)
    # On a machine of its own a node comes to one collection of the youngest objects in
    # all of this, and never to a full one; here that would look through all the others.
    gc.set_threshold(*gc.get_threshold()[:2], NO_FULL_ONE)
    while True:
        say("held")
        before = time.process_time()
        async with anyio.create_task_group() as waiters:
            for mine in links:
                waiters.start_soon(moved, mine, there)
        say("gone", time.process_time() - before)
        here, there = there, here


async def moved(mine: Link, server: str) -> None:
    await held(mine, server)
    say("at", time.monotonic())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pki", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--agents", type=int, default=250)
    parser.add_argument("servers", nargs="+")
    anyio.run(main, parser.parse_args())
