"""Control planes in a process of their own, to be killed.

`python -m tests.bench.plane ROLE:PORT... [--tls FOLDER] [--elect SECONDS]`: prints a
line with its ports, then, each second, how many asked to register.
"""

import argparse
import ssl
import sys
from pathlib import Path

import anyio

from tests.fakes.control_plane import ControlPlane


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
    parser.add_argument("--elect", type=float, help="all lead after so many seconds")
    args = parser.parse_args()
    tls = context(args.tls) if args.tls else None
    planes: list[ControlPlane] = []
    for server in args.servers:
        role, _, port = server.partition(":")
        one = ControlPlane(standby=role == "standby", port=int(port or 0), tls=tls)
        one.lease_s, one.ping_s = 15.0, 1.0
        one.replicas = [{"id": "a", "generation": 1, "engine": "command"}]
        planes.append(one)
    async with anyio.create_task_group() as group:
        for one in planes:
            await group.start(one.run)
        say("ready", *(one.port for one in planes))
        if args.elect is not None:
            group.start_soon(elect, planes, args.elect)
        before = [0] * len(planes)
        while True:
            await anyio.sleep(1)
            now = [one.count()["register"] for one in planes]
            say("asked", *(new - old for new, old in zip(now, before, strict=True)))
            before = now


async def elect(planes: list[ControlPlane], after: float) -> None:
    # Counted from when the first of the crowd asks: then the leader is gone.
    await planes[0].hears("register")
    await anyio.sleep(after)
    for one in planes:
        one.standby = False
    say("elected")


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main)
