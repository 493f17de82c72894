"""Who leads, and under which epoch: told at start, or by a file that is followed.

The election on etcd is in election.py; all of them look the same from outside.
"""

import logging
import re
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
from msgspec import Struct

from llmgw.aio import Latest
from llmgw.control.files import read, write
from llmgw.errors import LlmgwError
from llmgw.wire import HIGHEST_EPOCH

log = logging.getLogger(__name__)

# Twenty looks a second: cheap, and a test that swaps two roles does not wait for it.
LOOK = 0.05


class Lead(Struct, frozen=True):
    """*epoch*: ours if we lead, else the leader's if it is known. *url*: of the leader.

    Not *is_open*: the port is closed, as if this control plane were off.
    """

    is_leader: bool = False
    epoch: int = 0
    url: str | None = None
    is_open: bool = True


class Role(Protocol):
    lead: Latest[Lead]

    def leads(self) -> bool:
        """Whether to accept agents this very moment."""
        ...

    def overtaken(self, epoch: int) -> None:
        """A node has accepted *epoch*, higher than ours: lead no more."""
        ...

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None: ...


class Told:
    """Leader or standby for as long as it runs; each start as leader is a new epoch."""

    def __init__(
        self, state_dir: Path, *, is_leader: bool, floor: int, url: str | None
    ) -> None:
        self.lead = Latest(Lead(url=url))
        self._counter = state_dir / "epoch"
        self._is_leader = is_leader
        self._floor = floor
        self._url = url

    def leads(self) -> bool:
        return self.lead.value.is_leader

    def overtaken(self, epoch: int) -> None:
        log.error(
            "stepped down: a node has followed a newer leader epoch=%d seen=%d "
            "fix='if that one is no more, start again with --epoch-floor %d'",
            self.lead.value.epoch,
            epoch,
            epoch + 1,
        )
        self.lead.set(Lead(epoch=epoch))

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        if self._is_leader:
            epoch = await anyio.to_thread.run_sync(
                next_epoch, self._counter, self._floor
            )
            self.lead.set(Lead(is_leader=True, epoch=epoch, url=self._url))
        task_status.started()
        await anyio.sleep_forever()


def next_epoch(counter: Path, floor: int) -> int:
    """One more than at the last start, at least *floor*; on disk before it is used."""
    last = read(counter)
    text = b"0" if last is None else last.strip()
    # Nor is it one if it is empty, as after a crash of the disk: whoever begins at 1
    # again is refused by every node.
    if not re.fullmatch(rb"[0-9]{1,19}", text) or int(text) >= HIGHEST_EPOCH:
        raise LlmgwError(
            f"is not the number of an epoch: {text[:40]!r}",
            where=str(counter),
            fix="write the highest epoch that any node has seen into it",
        )
    epoch = max(int(text) + 1, floor)
    write(counter, b"%d\n" % epoch)
    return epoch


class Followed:
    """What the one line of a file says: `leader EPOCH`, `standby [URL]` or `off`.

    A test, or a site's own tool, directs with it who leads.
    """

    def __init__(self, file: Path, *, url: str | None) -> None:
        self.lead = Latest(Lead())
        self._file = file
        self._url = url
        self._overtaken = 0
        self._said: bytes | None = None

    def leads(self) -> bool:
        return self.lead.value.is_leader

    def overtaken(self, epoch: int) -> None:
        log.error(
            "stepped down: a node has followed a newer leader epoch=%d seen=%d "
            "fix='if that one is no more, write into %s: leader %d'",
            self.lead.value.epoch,
            epoch,
            self._file,
            epoch + 1,
        )
        self._overtaken = epoch
        self.lead.set(Lead(epoch=epoch))

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        await self._look()
        task_status.started()
        while True:
            await anyio.sleep(LOOK)
            await self._look()

    async def _look(self) -> None:
        try:
            said = await anyio.to_thread.run_sync(read, self._file)
        except LlmgwError as error:
            said = str(error).encode()
        if said == self._said:
            return
        self._said = said
        try:
            lead = self._meant((said or b"").decode())
        except ValueError as error:
            log.warning("role file not followed file=%s error=%s", self._file, error)
            return
        if lead.is_leader and lead.epoch < self._overtaken:
            log.error("epoch too low epoch=%d seen=%d", lead.epoch, self._overtaken)
            return
        if lead != self.lead.value:
            log.info("role file says role=%s", (said or b"").decode().strip())
            self.lead.set(lead)

    def _meant(self, line: str) -> Lead:
        match line.split():
            case ["leader", epoch] if re.fullmatch("[0-9]{1,18}", epoch):
                return Lead(is_leader=True, epoch=int(epoch), url=self._url)
            case ["standby"]:
                return Lead()
            case ["standby", url]:
                return Lead(url=url)
            case ["off"]:
                return Lead(is_open=False)
            case _:
                raise ValueError(f"{line!r} is not: leader EPOCH, standby or off")
