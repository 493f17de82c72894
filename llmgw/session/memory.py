"""What the link knows beyond a session: on disk what must last, and what is amiss."""

import logging
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from llmgw.errors import Refused
from llmgw.session import kept as disk
from llmgw.session import rules
from llmgw.session.kept import Kept, Machine
from llmgw.session.troubles import Troubles, rebuilt
from llmgw.wire import Problem

log = logging.getLogger(__name__)


class Memory:
    """The highest epoch, this node's instance, and servers beyond those of the file."""

    def __init__(
        self,
        state_dir: Path,
        configured: tuple[str, ...],
        troubles: Troubles,
        *,
        tls: bool,
        root: Path,
    ) -> None:
        self._state_dir = state_dir
        self._configured = configured
        self._troubles = troubles
        self._tls = tls
        self._root = root
        self._kept = Kept(machine="", instance="")
        self._machine = Machine(id_hash="", boot_id="")
        self._failed: set[str] = set()
        self._wanted = b""
        self._writing = anyio.Lock()
        self._unwritten: set[str] = set()

    @property
    def epoch(self) -> int:
        return self._kept.epoch

    @property
    def instance(self) -> str:
        return self._kept.instance

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def servers(self) -> tuple[str, ...]:
        """In the order of a round."""
        return rules.order(self._configured, self._kept.servers)

    async def load(self) -> None:
        self._machine, (self._kept, why) = await anyio.to_thread.run_sync(self._load)
        if why:
            self._troubles.set(
                Problem(
                    code="state_anew",
                    severity="warning",
                    what=f"{why}; this node is a new instance to the control plane",
                    where=str(self._state_dir / disk.NAME),
                )
            )
        await self._save()

    def _load(self) -> tuple[Machine, tuple[Kept, str | None]]:
        machine = disk.machine(self._root)
        return machine, disk.load(self._state_dir, machine.id_hash)

    async def accept(self, epoch: int, *, where: str) -> None:
        """Refused if a higher one was accepted before; else it is the one to beat."""
        if not rules.may_lead(epoch, self.epoch):
            what = f"stale leader: its epoch {epoch} is below {self.epoch}, seen before"
            fix = rebuilt(self.epoch)
            raise Refused(what, where=where, fix=fix, code="stale_epoch")
        if epoch > self.epoch:
            await self._change(epoch=epoch)

    async def forget_epoch(self) -> None:
        """Any leader will do again: for a control plane that was rebuilt."""
        await self._change(epoch=0)
        log.warning("highest epoch forgotten by a person")

    async def learn(self, named: Iterable[str]) -> None:
        """The control plane says where else it can be found."""
        servers = rules.learnable(named, self._configured, tls=self._tls)
        self._failed.difference_update(servers)
        if servers != self._kept.servers:
            await self._change(servers=servers)
            log.info("servers learned servers=%s", ",".join(servers))

    def failed(self, server: str) -> None:
        self._failed.add(server)

    async def drop_failed(self, *, but: str) -> None:
        """Once another accepted us, which is *but*.

        Before that a dead one may be the only one left: all servers can restart at
        once, with those of the file long gone.
        """
        self._failed.discard(but)
        left = tuple(one for one in self._kept.servers if one not in self._failed)
        self._failed.clear()
        if left != self._kept.servers:
            await self._change(servers=left)

    async def _change(
        self, *, epoch: int | None = None, servers: Collection[str] | None = None
    ) -> None:
        self._kept = msgspec.structs.replace(
            self._kept,
            epoch=self._kept.epoch if epoch is None else epoch,
            servers=self._kept.servers if servers is None else tuple(servers),
        )
        await self._save()

    async def _save(self) -> None:
        await self._write(disk.NAME)

    async def wanted(self) -> bytes | None:
        return await anyio.to_thread.run_sync(disk.load_wanted, self._state_dir)

    async def keep_wanted(self, line: bytes) -> None:
        self._wanted = line
        await self._write(disk.WANTED)

    async def mend(self) -> None:
        """Try again what the disk did not take."""
        for name in tuple(self._unwritten):
            await self._write(name)

    async def _write(self, name: str) -> None:
        # One at a time, and each the newest there is: of two at once the older could be
        # the one that stays, and with it a lower epoch.
        async with self._writing:
            if name == disk.NAME:
                write = partial(disk.save, self._state_dir, self._kept)
            else:
                write = partial(disk.save_wanted, self._state_dir, self._wanted)
            try:
                await anyio.to_thread.run_sync(write)
            except OSError as error:
                # No reason to stay away: it is remembered until the agent ends.
                self._unwritten.add(name)
                self._troubles.set(self._unwritable(name, error))
                return
        self._unwritten.discard(name)
        if not self._unwritten:
            self._troubles.clear("state_unwritable")

    def _unwritable(self, name: str, error: OSError) -> Problem:
        lost = _LOST[name]
        return Problem(
            code="state_unwritable",
            severity="error",
            what=f"cannot be written: {error.strerror}; a restart would {lost}",
            where=str(self._state_dir / name),
            fix="free space or repair the file system; it is tried again by itself",
        )


_LOST = {
    disk.NAME: "forget the highest epoch",
    disk.WANTED: "start what was wanted before, until a control plane is found",
}
