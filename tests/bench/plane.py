"""Control planes in a process of their own, to be killed.

`python -m tests.bench.plane ROLE:PORT... [--tls FOLDER]` prints a line with its ports.
Of the lines it is sent, `elect` makes all of them lead; `asked` has it print how many
asked to register since it was sent last, how many of them in the busiest second, and
the seconds of processor time.
"""

import argparse
import ssl
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import anyio

from tests.fakes.control_plane import ControlPlane, Exchange


class Counted(ControlPlane):
    """Remembers when it was asked to register."""

    def __init__(self, *, standby: bool, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(standby=standby, port=port, tls=tls)
        self.asked: list[float] = []

    async def _register(self, exchange: Exchange) -> None:
        self.asked.append(time.monotonic())
        await super()._register(exchange)


told = [0.0]  # processor time, by when it was told last


def busiest(times: Sequence[float]) -> int:
    """The most of *times*, in order, that lie within one second, wherever it begins."""
    return max(
        (end - bisect_left(times, at - 1.0) + 1 for end, at in enumerate(times)),
        default=0,
    )


def context(folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(folder / "cp.crt", folder / "cp.key")
    made.load_verify_locations(folder / "ca.crt")
    return made


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+")
    parser.add_argument("--tls", type=Path)
    args = parser.parse_args()
    tls = context(args.tls) if args.tls else None
    planes: list[Counted] = []
    for server in args.servers:
        role, _, port = server.partition(":")
        one = Counted(standby=role == "standby", port=int(port or 0), tls=tls)
        one.lease_s, one.ping_s = 15.0, 1.0
        one.replicas = [{"id": "a", "generation": 1, "engine": "command"}]
        planes.append(one)
    async with anyio.create_task_group() as group:
        for one in planes:
            await group.start(one.run)
        say("ready", *(one.port for one in planes))
        async for line in anyio.wrap_file(sys.stdin):
            if line.strip() == "elect":
                for one in planes:
                    one.standby = False
            else:
                tell(planes)
        group.cancel_scope.cancel()


def tell(planes: list[Counted]) -> None:
    used = time.process_time() - told[0]
    told[0] += used
    asked = sum(len(one.asked) for one in planes)
    say("asked", asked, max(busiest(one.asked) for one in planes), used)
    for one in planes:
        one.asked.clear()


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main)
