"""A link in a namespace of its own, and the control planes beyond it."""

import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fakes.control_plane import ControlPlane
from tests.fakes.hosts import Host

BEAT = 0.2
A = {"id": "a", "generation": 1, "engine": "command"}


class Node:
    """The link in its own namespace, as its lines tell."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout
        self.pid = process.pid
        self._lines = BufferedByteReceiveStream(process.stdout)
        self.last: dict[str, Any] = {}

    async def next(self) -> dict[str, Any]:
        line = msgspec.json.decode(await self._lines.receive_until(b"\n", 1 << 20))
        self.last = {"state": "connecting", **line["status"], "wanted": line["wanted"]}
        return self.last

    async def until(self, **facts: object) -> dict[str, Any]:
        """Wait for a status that has these."""
        while any(self.last.get(name) != value for name, value in facts.items()):
            await self.next()
        return self.last


@asynccontextmanager
async def node_on(
    host: Host,
    tmp_path: Path,
    *servers: str,
    mounts: Sequence[str] = (),
    tls: Sequence[Path] = (),
    env: dict[str, str] | None = None,
) -> AsyncGenerator[Node]:
    """*mounts*: made for it alone, by the words that follow `mount`."""
    words = [str(tmp_path / "state"), str(BEAT), *servers]
    if tls:
        words += ["--tls", *map(str, tls)]
    command = host.python("tests.fakes.node_process", *words)
    if mounts:
        script = " && ".join(f"mount {line}" for line in mounts)
        script += f" && exec {shlex.join(command)}"
        command = ["unshare", "--mount", "sh", "-c", script]
    started = anyio.open_process(command, stdout=PIPE, stderr=None, env=env)  # noqa: TID251 -- it is to die with the test
    async with await started as process:
        try:
            yield Node(process)
        finally:
            process.kill()


def control_plane(beyond: Host, address: str, **told: Any) -> ControlPlane:
    one = ControlPlane(host=address, sock=beyond.listen(address), **told)
    one.replicas = [A]
    return one
