"""Who leads, elected on etcd: one at a time, and never by a clock that others set.

  standing ──elected──▶ leading ──lease not renewed in time, or overtaken──▶ standing

The lease is counted from before each renewal was sent, so that it ends here before it
can end in etcd; a margin is left for clocks that run at different speeds. The next one
is elected only after it has ended there, or at once where it was given back.
"""

import logging
import random
import re
import time
from collections.abc import Callable

import anyio
import anyio.abc

from llmgw.aio import Latest
from llmgw.backoff import delays, jittered
from llmgw.control.etcd import Etcd, Kv, Won
from llmgw.control.leader import Lead
from llmgw.errors import LlmgwError

log = logging.getLogger(__name__)

# Of the lease: how much of it is left unused at its end.
MARGIN = 0.1
# How often a standby tries: a lead that was given back is taken up within this.
LOOK = 0.1


def clock() -> float:
    """Seconds that also pass while this machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Elected:
    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        *,
        ttl: int,
        url: str | None,
        floor: int,
        now: Callable[[], float] = clock,
    ) -> None:
        self.lead = Latest(Lead())
        self.won: Won | None = None
        self._etcd = etcd
        self._now = now
        self._key = f"{prefix}leader"
        self._floor_key = f"{prefix}epoch-floor"
        self._ttl = ttl
        self._url = url
        self._floor = floor
        self._deadline = 0.0
        self._overtaken = 0
        self._gave_up = anyio.Event()

    def leads(self) -> bool:
        return self.lead.value.is_leader and self._now() < self._deadline

    def overtaken(self, epoch: int) -> None:
        self._overtaken = max(epoch, self._overtaken)
        self.lost()
        log.error(
            "stepped down: a node has followed a newer leader seen=%d "
            "fix='if etcd was made anew, start with --epoch-floor %d'",
            epoch,
            epoch + 1,
        )

    def lost(self) -> None:
        """The lead is another's, or nobody's: accept no more, and stand again."""
        self._stand_by()
        self._gave_up.set()

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        waits = delays(0.2, float(self._ttl))
        while True:
            try:
                await self._term()
                waits = delays(0.2, float(self._ttl))
            except LlmgwError as error:
                log.warning("no election error=%s", error)
            finally:
                self._stand_by()
            await anyio.sleep(jittered(next(waits), random.random()))  # noqa: S311 -- spreads retries

    async def _term(self) -> None:
        """Stand, lead, and lose it. LlmgwError if etcd cannot be had."""
        await self._raise_floor()
        asked = self._now()
        lease = await self._etcd.grant(self._ttl)
        self._deadline = asked + self._ttl * (1 - MARGIN)
        self._gave_up = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, lease)
                group.start_soon(self._stand, lease)
                await self._gave_up.wait()
                group.cancel_scope.cancel()
        finally:
            self._stand_by()
            # Given back, the next is elected in milliseconds and not after the lease.
            with anyio.move_on_after(1, shield=True):
                await self._give_back(lease)

    async def _give_back(self, lease: str) -> None:
        try:
            await self._etcd.revoke(lease)
        except LlmgwError:
            # It ends by itself.
            pass

    async def _renew(self, lease: str) -> None:
        """Until the lease has ended, here or there."""
        while True:
            await anyio.sleep(self._ttl / 4)
            asked = self._now()
            with anyio.move_on_after(self._deadline - asked):
                if await self._renewed(lease, asked):
                    continue
            log.warning("the lease in etcd was not renewed in time")
            self.lost()
            return

    async def _renewed(self, lease: str, asked: float) -> bool:
        while True:
            try:
                left = await self._etcd.keep_alive(lease)
            except LlmgwError:
                await anyio.sleep(0.1)
                asked = self._now()
                continue
            if left:
                self._deadline = asked + left * (1 - MARGIN)
            return left > 0

    async def _stand(self, lease: str) -> None:
        """Until elected; meanwhile who leads is told to those who ask here."""
        value = (self._url or "").encode()
        while True:
            try:
                holder = await self._etcd.stand(self._key, lease, value)
                if holder.lease == lease:
                    floor = await self._etcd.get(self._floor_key)
                    break
            except LlmgwError as error:
                log.debug("standing again error=%s", error.what)
            else:
                known = Lead(
                    epoch=holder.created,
                    url=holder.value.decode(errors="replace") or None,
                )
                if known != self.lead.value:
                    self.lead.set(known)
            await anyio.sleep(LOOK)
        epoch = holder.created + _floor_in(floor)
        if epoch < self._overtaken:
            log.error("epoch too low to lead epoch=%d seen=%d", epoch, self._overtaken)
            self._gave_up.set()
            return
        self.won = Won(key=holder.key, revision=holder.created)
        self.lead.set(Lead(is_leader=True, epoch=epoch, url=self._url))

    async def _raise_floor(self) -> None:
        """In etcd, so that it stays when the flag is gone, and holds for all."""
        present = await self._etcd.get(self._floor_key)
        if self._floor > _floor_in(present):
            await self._etcd.put(self._floor_key, b"%d" % self._floor)

    def _stand_by(self) -> None:
        self.won = None
        if self.lead.value.is_leader:
            self.lead.set(Lead())


def _floor_in(found: Kv | None) -> int:
    if found is None:
        return 0
    if not re.fullmatch(rb"[0-9]{1,19}", found.value):
        raise LlmgwError(
            f"is not the number of an epoch: {found.value[:40]!r}",
            where=f"etcd {found.key}",
            fix="write the number below which no epoch may be",
        )
    return int(found.value)
