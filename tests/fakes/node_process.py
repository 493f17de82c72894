"""A link in a process of its own; all news of it are lines of JSON.

`python -m tests.fakes.node_process STATE_DIR HEARTBEAT SERVER...`
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec

from llmgw.aio import Latest
from llmgw.config import keys
from llmgw.config.keys import Tls
from llmgw.session.link import Link
from llmgw.session.node import Identity
from llmgw.tls import Certificates
from tests.fakes.node import FakeNode


class Node(FakeNode):
    def interface(self, address: str) -> str | None:
        # As `ip` tells it: the C library tells an address's label, which keeps the
        # name that the interface had before.
        shown = subprocess.run(["ip", "-j", "address"], capture_output=True, check=True)
        bare, _, zone = address.partition("%")
        for link in msgspec.json.decode(shown.stdout):
            holds = any(one["local"] == bare for one in link["addr_info"])
            if holds and zone in ("", link["ifname"]):
                return link["ifname"]
        return None


def certificates(files: list[str] | None) -> Certificates | None:
    if files is None:
        return None
    cert, key, ca = files
    return Certificates(Tls(cert_file=cert, key_file=key, ca_file=ca), "n1")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state")
    parser.add_argument("heartbeat", type=float)
    parser.add_argument("servers", nargs="+")
    parser.add_argument("--tls", nargs=3, metavar=("CERT", "KEY", "CA"))
    given = parser.parse_args()
    link = Link(
        Identity(node_id="n1", version="0.1.0"),
        tuple(given.servers),
        certificates(given.tls),
        keys.Link(),
        Node(),
        Path(given.state),
        heartbeat=given.heartbeat,
        reconnect_base=0.2,
        reconnect_max=0.5,
    )

    async def tell(news: Latest[Any]) -> None:
        number = -1
        while True:
            number, _ = await news.newer_than(number)
            desired = link.desired.value
            wanted = None if desired is None else len(desired.wanted)
            line = {"status": link.status.value, "wanted": wanted}
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
            sys.stdout.flush()

    async with anyio.create_task_group() as group:
        group.start_soon(tell, link.status)
        group.start_soon(tell, link.desired)
        group.start_soon(link.run)


anyio.run(main)
