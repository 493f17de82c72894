"""A name server that knows what it is told, is slow, or says nothing."""

import socket
from collections.abc import Mapping, Sequence

import anyio
from anyio.abc import TaskStatus


class Names:
    """Answers on *sock* from *table*; *silent* names are heard and never answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.table: dict[str, list[str]] = {}
        self.silent: set[str] = set()
        self.late = 0.0
        self.asked: list[str] = []
        self._sock = sock

    async def run(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        async with anyio.create_task_group() as group:
            task_status.started()
            with self._sock:
                while True:
                    await anyio.wait_readable(self._sock)
                    question, client = self._sock.recvfrom(4096)
                    name = asked(question)
                    self.asked.append(name)
                    if name not in self.silent:
                        group.start_soon(self._answer, question, client)

    async def _answer(self, question: bytes, client: object) -> None:
        await anyio.sleep(self.late)
        self._sock.sendto(answer(question, self.table), client)  # pyright: ignore[reportArgumentType] -- as it came


def asked(question: bytes) -> str:
    """The name in a question."""
    return _read(question)[0]


def _read(question: bytes) -> tuple[str, int]:
    """The name, and where it ends."""
    at, labels = 12, list[str]()
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    return ".".join(labels).lower(), at


def answer(question: bytes, table: Mapping[str, Sequence[str]]) -> bytes:
    """*table*: `A 10.0.0.1`, `AAAA fd00::1` by name; NXDOMAIN for all others."""
    name, at = _read(question)
    kind = int.from_bytes(question[at + 1 : at + 3], "big")
    wanted, family = ("A", socket.AF_INET) if kind == 1 else ("AAAA", socket.AF_INET6)
    answers = b""
    count = 0
    for record in table.get(name, ()):
        said, address = record.split()
        if said == wanted:
            data = socket.inet_pton(family, address)
            answers += b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\0\1\0\0\0\0"
            answers += len(data).to_bytes(2, "big") + data
            count += 1
    code = 0 if name in table else 3
    flags = (0x8180 | code).to_bytes(2, "big")
    head = question[:2] + flags + b"\0\1" + count.to_bytes(2, "big") + b"\0\0\0\0"
    return head + question[12 : at + 5] + answers
