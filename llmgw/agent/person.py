"""What a person said on this node: nothing new, this one stays stopped. It is kept."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from llmgw.agent import kept
from llmgw.errors import LlmgwError
from llmgw.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)


class Person:
    """*touch*: called when something that reconciling should see is new."""

    def __init__(
        self, state_dir: Path, supervisor: Supervisor, touch: Callable[[], None]
    ) -> None:
        self._state_dir = state_dir
        self._supervisor = supervisor
        self._touch = touch
        # Two people at once: each reads, writes and then believes what was written.
        self._lock = anyio.Lock()
        self._drained_since: float | None = None
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
        self._touch()

    def until_drained(self) -> float:
        """Seconds until a drain ends what did not finish; inf without such an end."""
        if self._drain is None or self._drain.stop_after is None:
            return float("inf")
        if self._drained_since is None:
            self._drained_since = anyio.current_time()
        return self._drained_since + self._drain.stop_after - anyio.current_time()

    def end_of_drain(self) -> None:
        """Once its time is up, end what did not finish."""
        if self.until_drained() > 0:
            return
        for status in self._supervisor.statuses():
            if status.state not in ("stopping", "stopped"):
                log.warning("drain ends engine name=%s", status.id)
                self._supervisor.unwant(status.id)

    async def hold(self, name: str, *, held: bool) -> None:
        """A person stops a replica, until it is wanted otherwise or started again."""
        statuses = self._supervisor.statuses()
        status = next((one for one in statuses if one.id == name), None)
        if status is None:
            known = ", ".join(one.id for one in statuses) or "none"
            raise LlmgwError(f"there is no replica {name} here; there are: {known}")
        path = self._state_dir / kept.STOPPED
        async with self._lock:
            others = set(self.stopped) - {status.spec_digest}
            digests = tuple(sorted(others | {status.spec_digest} if held else others))
            stopped = kept.Stopped(digests=digests)
            await anyio.to_thread.run_sync(kept.write, path, stopped)
            self.stopped = digests
        if held:
            self._supervisor.unwant(name)
        self._touch()
