"""Whether an engine serves: asking it, and judging what it says.

Asking is dull and judging is pure: `Judge` is given readings and the time, and says
the state. Busy is not dead: an engine that answers late while its tokens count up
works. Stuck is dead: one that answers, has requests and moves none. Where that is
wanted, one token is asked for before it is said.

    starting ──200──▶ ready ◀──200── busy | unhealthy
       │                │
       │                ├─ no 200, tokens grow ──▶ busy
       │                └─ no 200 three times ───▶ unhealthy ──▶ stuck: given up
       └─ nothing grows for start_timeout, or the cap ─▶ late: given up
"""

import ssl
from typing import Literal, NamedTuple

import httpx
from msgspec import Struct

from llmgw.supervisor.launch import Health, Probe

# Loading has an end even where it looks busy: so many times the time without progress.
START_CAP = 6
# One slow answer is no news; three in a row are.
UNHEALTHY_AFTER = 3
# Bytes read: a driver that polls reads too; weights come in by the megabyte.
LOADED_STEP = 1 << 20


class Reading(Struct, frozen=True, kw_only=True):
    """One look at an engine. None: it was not to be had.

    *moved* sums what counts its work; *effort* is bytes read and logged and MiB held.
    """

    answered: bool
    why: str = ""
    moved: float | None = None
    requests: float | None = None
    effort: tuple[int, ...] = ()


class Verdict(NamedTuple):
    """*given_up*: it is to be ended and started again, for this reason."""

    state: Literal["starting", "ready", "busy", "unhealthy"]
    reason: str | None = None
    given_up: bool = False


class Judge:
    """What an engine's readings amount to. Times are monotonic seconds.

    *was_ready*: it served before this agent was there, so that it has *ready_within*
    to say so again, and is unhealthy after.
    """

    def __init__(
        self,
        now: float,
        *,
        start_timeout: float,
        stuck_after: float,
        was_ready: bool = False,
        ready_within: float = 0.0,
        has_probe: bool = False,
    ) -> None:
        self.was_ready = was_ready
        self._begun = now
        self._start_timeout = start_timeout
        self.stuck_after = stuck_after
        self._ready_within = ready_within if was_ready else None
        self._effort: tuple[int, ...] = ()
        self._grew = now
        self._moved: float | None = None
        self._sound = now  # when it was last seen to work
        self._misses = 0
        self._has_probe = has_probe
        self._owes_token = False

    def wants_probe(self, now: float) -> bool:
        """Whether a token is to be asked for: it answers, and shows no other work."""
        return (
            self._has_probe
            and self.was_ready
            and self._misses == 0
            and now - self._sound >= self.stuck_after
        )

    def probed(self, gave: bool | None, begun: float, now: float) -> None:
        """*gave*: whether a token came; None: it can't be asked, and is judged as
        without. One that has worked since *begun* was busy and owes nothing."""
        if gave is None:
            self._has_probe = False
        elif gave:
            self._works(now)
        else:
            self._owes_token = self._sound <= begun

    def _works(self, now: float) -> None:
        self._sound = now
        self._owes_token = False

    def see(self, reading: Reading, now: float) -> Verdict:
        is_moving = self._is_moving(reading)
        if self._ready_within is not None:
            if not reading.answered:
                return self._adopted(reading, now)
            self._ready_within = None
        if not self.was_ready and not reading.answered:
            return self._starting(reading, now)
        self.was_ready = True
        if reading.answered:
            return self._answered(reading, is_moving, now)
        return self._silent(reading, is_moving, now)

    def _is_moving(self, reading: Reading) -> bool:
        if reading.moved is None:
            return False
        before, self._moved = self._moved, reading.moved
        return before is not None and reading.moved > before

    def _adopted(self, reading: Reading, now: float) -> Verdict:
        assert self._ready_within is not None
        if now - self._begun < self._ready_within:
            return Verdict("starting", "adopted; not heard of yet")
        self._ready_within = None
        self._misses = UNHEALTHY_AFTER
        self._sound = now
        return Verdict("unhealthy", f"adopted, and silent since: {reading.why}")

    def _starting(self, reading: Reading, now: float) -> Verdict:
        if _has_grown(self._effort, reading.effort):
            self._effort = reading.effort
            self._grew = now
        if now - self._grew >= self._start_timeout:
            return Verdict(
                "starting",
                f"not ready, and nothing loaded for {self._start_timeout:g} s: "
                f"{reading.why}",
                given_up=True,
            )
        if now - self._begun >= self._start_timeout * START_CAP:
            return Verdict(
                "starting",
                f"not ready after {now - self._begun:.0f} s: {reading.why}",
                given_up=True,
            )
        return Verdict("starting", reading.why or None)

    def _answered(self, reading: Reading, is_moving: bool, now: float) -> Verdict:
        self._misses = 0
        tells = reading.moved is not None and reading.requests is not None
        if is_moving or (not reading.requests if tells else not self._has_probe):
            self._works(now)
        if now - self._sound < self.stuck_after:
            return Verdict("ready")
        if self._has_probe and not self._owes_token:
            return Verdict("ready", "asked for a token: no other sign of work")
        since = f"nothing has moved for {now - self._sound:.0f} s"
        what = f"{reading.requests:g} requests run and " if reading.requests else ""
        if self._owes_token:
            since += f", and one token did not come in {self.stuck_after:g} s"
        return Verdict("unhealthy", f"stuck: {what}{since}", given_up=True)

    def _silent(self, reading: Reading, is_moving: bool, now: float) -> Verdict:
        if is_moving:
            self._works(now)
            self._misses = 0
            return Verdict("busy", reading.why)
        self._misses += 1
        if now - self._sound >= self.stuck_after:
            return Verdict(
                "unhealthy",
                f"stuck: no sign of work for {now - self._sound:.0f} s: {reading.why}",
                given_up=True,
            )
        if self._misses < UNHEALTHY_AFTER:
            return Verdict("ready", reading.why)
        return Verdict("unhealthy", reading.why)


def _has_grown(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Any of them, by enough to be loading and not idling."""
    if len(before) != len(now):
        return True
    steps = (LOADED_STEP, 1, 1)  # bytes read, MiB held, bytes logged
    return any(n - b >= step for b, n, step in zip(before, now, steps, strict=False))


def client(timeout: float) -> httpx.AsyncClient:
    """For engines only: no proxies, no redirects, whatever the environment says."""
    # Engines are asked over plain HTTP. A context that trusts nobody costs nothing;
    # httpx' own would read every CA of the system.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(
        trust_env=False, follow_redirects=False, timeout=timeout, verify=nobody
    )


async def ask(client: httpx.AsyncClient, health: Health, base: str) -> Reading:
    """What it answers, and what its metrics say; its effort is for others to see."""
    answered, why = False, ""
    try:
        response = await client.get(f"{base}{health.path}")
        answered = response.status_code == 200
        why = "" if answered else f"{health.path} answers {response.status_code}"
    except httpx.TimeoutException:
        why = f"{health.path} does not answer in time"
    except httpx.HTTPError as error:
        why = f"{health.path}: {error or type(error).__name__}"
    moved, requests = await _metrics(client, health, base)
    return Reading(answered=answered, why=why, moved=moved, requests=requests)


async def probe(
    client: httpx.AsyncClient, probe: Probe, base: str, within: float
) -> bool | None:
    """Whether a token came; None: it refuses to be asked, which says nothing."""
    try:
        response = await client.post(
            f"{base}{probe.path}",
            content=probe.body,
            headers={"Content-Type": "application/json"},
            timeout=within,
        )
    except httpx.HTTPError:
        return False
    return True if response.status_code == 200 else None


async def _metrics(
    client: httpx.AsyncClient, health: Health, base: str
) -> tuple[float | None, float | None]:
    """What it has moved and how many requests it has; None: it does not say."""
    if health.metrics_path is None:
        return None, None
    try:
        response = await client.get(f"{base}{health.metrics_path}")
    except httpx.HTTPError:
        return None, None
    if response.status_code != 200:
        return None, None
    moved = total(response.text, health.progress_metrics)
    if health.requests_metric is None:
        return moved, None
    return moved, total(response.text, (health.requests_metric,))


def total(text: str, names: tuple[str, ...]) -> float | None:
    """The sum of all samples with these names in a Prometheus text; None: none."""
    found: list[float] = []
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name.strip() in names:
            value = rest.rpartition("}")[2].split() if "{" in line else rest.split()
            try:
                found.append(float(value[0]))
            except (ValueError, IndexError):
                continue
    return sum(found) if found else None
