"""What a person said on this node: nothing new, this one stays stopped. It is kept."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.agent import kept
from llmgw.errors import LlmgwError
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import Wanted

log = logging.getLogger(__name__)


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
        self._drained_since: float | None = None
        self._has_ended = False
        self._drain = kept.read(state_dir / kept.DRAIN, kept.Drain)
        stopped = kept.read(state_dir / kept.STOPPED, kept.Stopped)
        # Of what was wanted, not of a name: wanted otherwise, it starts again.
        self.stopped: tuple[str, ...] = stopped.digests if stopped else ()

    @property
    def is_draining(self) -> bool:
        return self._drain is not None

    async def set_drain(self, drain: kept.Drain | None) -> None:
        """Nothing new is started while draining, also after a restart of the agent."""
        path = self._state_dir / kept.DRAIN
        async with self._lock:
            await anyio.to_thread.run_sync(kept.write, path, drain)
            self._drain = drain
            self._drained_since = None
            self._has_ended = False
        self._touch()

    def until_drained(self) -> float:
        """Seconds until a drain ends what did not finish; inf without such an end, and
        once that is done: who waits for what is over by now, waits not at all.
        """
        if self._has_ended:
            return float("inf")
        return self._left()

    def _left(self) -> float:
        if self._drain is None or self._drain.stop_after is None:
            return float("inf")
        if self._drained_since is None:
            self._drained_since = anyio.current_time()
        return self._drained_since + self._drain.stop_after - anyio.current_time()

    def end_of_drain(self) -> None:
        """Once its time is up, end what did not finish."""
        if self._left() > 0:
            return
        self._has_ended = True
        for status in self._supervisor.statuses():
            if status.state not in ("stopping", "stopped"):
                log.warning("drain ends engine name=%s", status.id)
                self._supervisor.unwant(status.id)

    async def hold(self, name: str, *, held: bool) -> None:
        """A person stops a replica, until it is wanted otherwise or started again."""
        meant = self._digests(name)
        path = self._state_dir / kept.STOPPED
        async with self._lock:
            others = set(self.stopped) - meant
            digests = tuple(sorted(others | meant if held else others))
            stopped = kept.Stopped(digests=digests)
            await anyio.to_thread.run_sync(kept.write, path, stopped)
            self.stopped = digests
        if held:
            self._supervisor.unwant(name)
        self._touch()

    def _digests(self, name: str) -> set[str]:
        """Of what runs under *name*, and of what is wanted there: of what a person has
        stopped nothing runs, and after a restart nothing is known but that.
        """
        named = self._named()
        found = {digest for id, digest in named if id == name}
        if not found:
            known = ", ".join(sorted(self.known())) or "none"
            raise LlmgwError(f"there is no replica {name} here; there are: {known}")
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
