"""What a person said on this node: nothing new, this one stays stopped. It is kept."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from llmgw.agent import kept
from llmgw.config.address import quote
from llmgw.errors import LlmgwError
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import Wanted

log = logging.getLogger(__name__)


class Draining(Struct, frozen=True, kw_only=True):
    """Nothing new is started here. Who wants it, and when what still runs is stopped:
    *ends_in_s* is 0 once that is done, None where it is not asked for.
    """

    by_person: bool
    by_control: bool
    stop_after_s: float | None = None
    ends_in_s: float | None = None


class Person:
    """*wanted*: what is, now. *touch*: called when something that reconciling should
    see is new.
    """

    def __init__(
        self,
        state_dir: Path,
        supervisor: Supervisor,
        wanted: Callable[[], tuple[Wanted, ...]],
        touch: Callable[[], None],
    ) -> None:
        self._state_dir = state_dir
        self._supervisor = supervisor
        self._wanted = wanted
        self._touch = touch
        # Two people at once: each reads, writes and then believes what was written.
        self._lock = anyio.Lock()
        self._has_ended = False
        # What a bad disk made of them was said all the same. Passed over, a node that
        # somebody has open on the bench started all that was wanted.
        drain, undrain = kept.Drain(), kept.Undrained()
        self._drain = kept.read(state_dir / kept.DRAIN, kept.Drain, drain)
        undrained = kept.read(state_dir / kept.UNDRAINED, kept.Undrained, undrain)
        self._is_undrained = undrained is not None
        stopped = kept.read(state_dir / kept.STOPPED, kept.Stopped)
        # Of what was wanted, not of a name: wanted otherwise, it starts again.
        self.stopped: tuple[str, ...] = stopped.digests if stopped else ()

    def draining(self, *, wanted: bool) -> Draining | None:
        """*wanted*: by the control plane. None: this node does not drain."""
        wanted = wanted and not self._is_undrained
        if self._drain is None:
            return Draining(by_person=False, by_control=True) if wanted else None
        limit = self._drain.stop_after
        return Draining(
            by_person=True,
            by_control=wanted,
            stop_after_s=limit,
            ends_in_s=None if limit is None else round(max(self._left(), 0.0), 1),
        )

    async def drain(self, stop_after: float | None) -> None:
        """Nothing new is started while draining, also after a restart of the agent."""
        drain = kept.Drain(stop_after=stop_after, since=_now())
        async with self._lock:
            await self._write(kept.DRAIN, drain)
            self._drain = drain
            self._has_ended = False
        self._touch()

    async def undrain(self, *, wanted: bool) -> None:
        """End it. Where the control plane *wanted* one, that is passed over until it
        has ended: what a person says here counts.
        """
        async with self._lock:
            if wanted:
                await self._write(kept.UNDRAINED, kept.Undrained())
                self._is_undrained = True
            await self._write(kept.DRAIN, None)
            self._drain = None
        self._touch()

    async def heed(self, *, wanted: bool) -> None:
        """Of the control plane's next drain, once it has ended the one passed over."""
        if wanted or not self._is_undrained:
            return
        async with self._lock:
            self._is_undrained = False
            try:
                await self._write(kept.UNDRAINED, None)
            except LlmgwError as error:
                log.warning("kept file stays error=%s", error)

    async def _write(self, name: str, value: Struct | None) -> None:
        await anyio.to_thread.run_sync(kept.write, self._state_dir / name, value)

    def until_drained(self) -> float:
        """Seconds until a drain ends what did not finish; inf without such an end, and
        once that is done: who waits for what is over by now, waits not at all.
        """
        if self._has_ended:
            return float("inf")
        return self._left()

    def _left(self) -> float:
        drain, now = self._drain, _now()
        if drain is None or drain.stop_after is None:
            return float("inf")
        since = drain.since
        if since is None or since > now:  # booted since: then nothing runs either
            since = now
            self._drain = replace(drain, since=since)
        return since + drain.stop_after - now

    def end_of_drain(self) -> None:
        """Once its time is up, end what did not finish."""
        if self._left() > 0:
            return
        self._has_ended = True
        for status in self._supervisor.statuses():
            if status.state not in ("stopping", "stopped"):
                log.warning("drain ends engine name=%s", status.id)
                self._supervisor.unwant(status.id)

    async def hold(self, name: str, *, held: bool) -> bool:
        """A person stops a replica, until it is wanted otherwise or started again.
        Whether a person had stopped it before.
        """
        meant = self._digests(name)
        async with self._lock:
            others = set(self.stopped) - meant
            was_held = not meant.isdisjoint(self.stopped)
            digests = tuple(sorted(others | meant if held else others))
            stopped = kept.Stopped(digests=digests)
            await self._write(kept.STOPPED, stopped)
            self.stopped = digests
        if held:
            self._supervisor.unwant(name)
        self._touch()
        return was_held

    def _digests(self, name: str) -> set[str]:
        """Of what runs under *name*, and of what is wanted there: of what a person has
        stopped nothing runs, and after a restart nothing is known but that.
        """
        named = self._named()
        found = {digest for id, digest in named if id == name}
        if not found:
            known = ", ".join(sorted(self.known())) or "none"
            raise LlmgwError(
                f"there is no replica {quote(name[:80])} here",
                fix=f"there are {known}; `llmgw status` shows them",
            )
        return found

    def known(self) -> set[str]:
        """What a person may name: what runs, ran a moment ago, or is wanted."""
        return {id for id, _ in self._named()}

    def _named(self) -> list[tuple[str, str]]:
        run = [(one.id, one.spec_digest) for one in self._supervisor.statuses()]
        return run + [(one.replica.id, one.digest) for one in self._wanted()]

    def held(self) -> tuple[Wanted, ...]:
        """What would run if nobody had stopped it."""
        return tuple(one for one in self._wanted() if one.digest in self.stopped)


def _now() -> float:
    """Goes on over a restart of the agent and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
