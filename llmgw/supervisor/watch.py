"""One run of an engine, watched from outside until it ends or is given up."""

import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.aio import race
from llmgw.supervisor import health, logs
from llmgw.supervisor.backend import Engine
from llmgw.supervisor.health import Judge, Reading, Verdict
from llmgw.supervisor.launch import Health, Launch

# Looking at a starting engine this often makes "ready" known soon after it is true.
START_INTERVAL = 0.1
# Adding up what all its processes have read costs more than asking it does.
EFFORT_INTERVAL = 1.0
# The kernel's own average is over so many seconds.
PRESSURE_INTERVAL = 10.0


@dataclass
class Ended:
    """How one run of the engine ended. *served*: seconds it was ready; None: never."""

    reason: str
    exit: wire.Exit | None = None
    served: float | None = None


class Watch:
    """*seen* is told of each verdict, and how short of memory the engine is."""

    def __init__(
        self,
        engine: Engine,
        launch: Launch,
        log: Path,
        *,
        client: httpx.AsyncClient,
        judge: Judge,
        interval: float,
        seen: Callable[[Verdict, float | None], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._launch = launch
        self._log = log
        self._log_start = 0
        self._client = client
        self._judge = judge
        self._interval = interval
        self._seen = seen
        self._ready_since: float | None = None
        self._effort: tuple[int, ...] = ()
        self._effort_at = 0.0
        self._ooms: int | None = None

    async def until_ended(self, log_start: int, grace: float) -> Ended:
        """Returns when nothing of it is left. Cancelled, it leaves the engine alone."""
        self._log_start = log_start
        ended = await race(self._exited, self._judged, self._probed)
        if self._ready_since is not None:
            ended.served = time.monotonic() - self._ready_since
        elif self._judge.was_ready:
            ended.served = 0.0  # for another agent; how long is not known
        ooms = await run_sync(self._engine.ooms) if ended.exit is None else self._ooms
        if ended.exit is None:
            sign = signal.Signals[f"SIG{self._launch.stop_signal}"]
            ended.exit = await self._engine.stop(sign, grace)
        else:
            await self._engine.stop(signal.SIGKILL, 0)
        if ooms:
            limit = self._launch.limits.memory
            held_to = f" (memory.max {limit >> 20} MiB)" if limit else ""
            ended.reason = f"out of memory{held_to}: {ended.reason}"
        return ended

    async def _exited(self) -> Ended:
        exit = await self._engine.exited()
        how = described(exit)
        if self._ready_since is None and not self._engine.adopted:
            how += " before it was ready"
        last = await run_sync(self._last)
        return Ended(f"{how}\n{last}" if last else how, exit)

    def _last(self) -> str:
        """All that is read of its end, in one go: a restart waits for it."""
        self._ooms = self._engine.ooms()
        return logs.last_lines(self._log, self._log_start)

    async def _judged(self) -> Ended:
        if self._launch.health is None:
            self._ready_since = time.monotonic()
        while self._launch.health is None:
            await self._seen(Verdict("ready"), await run_sync(self._engine.pressure))
            await anyio.sleep(PRESSURE_INTERVAL)
        while True:
            reading = await self._reading()
            verdict = self._judge.see(reading, time.monotonic())
            if verdict.given_up:
                return Ended(verdict.reason or "given up")
            if verdict.state == "ready" and self._ready_since is None:
                self._ready_since = time.monotonic()
                await run_sync(self._engine.look_around)
            await self._seen(verdict, await run_sync(self._engine.pressure))
            interval = self._interval
            if verdict.state == "starting":
                interval = min(interval, START_INTERVAL)
            await anyio.sleep(interval)

    async def _probed(self) -> Ended:
        """Asks for a token when nothing else shows that it works."""
        checked = self._launch.health
        if checked is None or checked.probe is None:
            await anyio.sleep_forever()
        assert checked
        assert checked.probe
        while True:
            await anyio.sleep(self._interval)
            begun = time.monotonic()
            if self._judge.wants_probe(begun):
                within = self._judge.stuck_after
                gave = await health.probe(
                    self._client, checked.probe, self._base(checked), within
                )
                self._judge.probed(gave, begun, time.monotonic())

    def _base(self, checked: Health) -> str:
        host = self._launch.host
        named = f"[{host}]" if ":" in host else host
        return f"http://{named}:{self._launch.ports[checked.port]}"

    async def _reading(self) -> Reading:
        launch = self._launch
        assert launch.health, "without a health check there is nothing to read"
        base = self._base(launch.health)
        answer = await health.ask(self._client, launch.health, base)
        now = time.monotonic()
        if not answer.answered and now - self._effort_at >= EFFORT_INTERVAL:
            self._effort_at = now
            self._effort = await run_sync(self._looked_at)
        return Reading(
            answered=answer.answered,
            why=answer.why,
            moved=answer.moved,
            requests=answer.requests,
            effort=self._effort,
        )

    def _looked_at(self) -> tuple[int, ...]:
        return (*self._engine.effort(), logs.size(self._log))


def described(exit: wire.Exit) -> str:
    """As an operator says it."""
    if exit.code is not None:
        return f"exited with code {exit.code}"
    if exit.signal is not None:
        return f"killed by {signal.Signals(exit.signal).name}"
    return "ended; how is not known, another agent had started it"
