"""What this machine is, kept up to date: every probe, its last answer and its age.

A probe runs off the event loop, in a thread if it only reads the kernel's files, in a
child process if it can hang. One that is late leaves its last answer standing, and is
not started a second time beside itself.
"""

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from msgspec import UNSET, Struct

from llmgw.agent.load import Sampler
from llmgw.agent.probes import ROOT, Probe, probes
from llmgw.aio import Latest
from llmgw.config.keys import Config
from llmgw.discovery.child import Hung
from llmgw.discovery.found import Found, Trouble, numbers
from llmgw.engines.threads import Cpus
from llmgw.wire import Fact, Facts, Load, Problem

log = logging.getLogger(__name__)


class Run(Struct, frozen=True):
    """How the last run of a probe went. *ok*: it answered, in time."""

    duration_s: float
    ok: bool


class _Answer:
    """The last answer of one probe."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.digest = ""
        self.at = 0.0
        self.reason = "not looked at yet"
        self.troubles: tuple[Trouble, ...] = ()
        self.run: Run | None = None
        self.hung_since: float | None = None
        self.is_asked = False
        self.again = anyio.Event()


class Inventory:
    """`facts` is what is known, without waiting; `run` keeps it up to date."""

    def __init__(
        self,
        config: Config,
        *,
        root: Path = ROOT,
        replaced: Mapping[str, Probe] | None = None,
    ) -> None:
        """*replaced*: probes to take instead of the real ones, for tests."""
        self.changed = Latest(0)
        self._config = config
        self._probes = {**probes(lambda: self._config, root), **(replaced or {})}
        self._answers = {name: _Answer() for name in self._probes}
        self._since: dict[tuple[str, str], float] = {}
        self._load = Sampler(root, self._cards)
        self._cpus: Cpus | None = None

    # The life of it ----------------------------------------------------------------

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Survey now and then until cancelled; started once all was looked at once,
        but for the models, whose folders may be long to read.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._load.run)
            quick = [name for name in self._probes if name != "models"]
            if "models" in self._probes:
                group.start_soon(self._keep, "models")
            await self._survey(quick)
            task_status.started()
            for name in quick:
                group.start_soon(self._keep_later, name)

    async def once(self, *names: str) -> None:
        """Ask every probe once, or those."""
        await self._survey(list(names or self._probes))

    async def _survey(self, names: list[str]) -> None:
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(self.ask, name)

    async def _keep(self, name: str) -> None:
        await self.ask(name)
        await self._keep_later(name)

    async def _keep_later(self, name: str) -> None:
        answer = self._answers[name]
        while True:
            with anyio.move_on_after(self._probes[name].interval()):
                await answer.again.wait()
            answer.again = anyio.Event()
            await self.ask(name)

    def refresh(self, *names: str) -> None:
        """Look at these again now: something was installed or fetched."""
        for name in names:
            self._answers[name].again.set()

    def reconfigure(self, config: Config) -> None:
        """From now on the folders and limits of *config*."""
        self._config = config
        self.refresh(*self._probes)

    # One probe ---------------------------------------------------------------------

    async def ask(self, name: str) -> None:
        """Ask one probe; returns when it has answered, or is late."""
        probe, answer = self._probes[name], self._answers[name]
        if answer.is_asked:  # a thread of its own is still in there
            return
        began = time.monotonic()
        before = (answer.digest, answer.troubles, answer.hung_since)
        answer.is_asked = True
        try:
            with anyio.fail_after(probe.deadline()):
                found, digest = await anyio.to_thread.run_sync(
                    _ask,
                    probe,
                    answer,
                    abandon_on_cancel=True,
                    # The threads of others are not for those that hang.
                    limiter=anyio.CapacityLimiter(1),
                )
        except (Hung, TimeoutError) as late:
            since = late.since if isinstance(late, Hung) else began
            self._late(name, answer, since)
        except RuntimeError as error:
            if not answer.is_asked:  # of the probe's own making
                raise
            answer.is_asked = False  # not even a thread is to be had
            self._take(name, answer, *_failed(error))
        else:
            self._take(name, answer, found, digest)
        answer.run = Run(time.monotonic() - began, answer.hung_since is None)
        if before != (answer.digest, answer.troubles, answer.hung_since):
            self.changed.set(self.changed.value + 1)

    def _late(self, name: str, answer: _Answer, since: float) -> None:
        if answer.hung_since is None:
            answer.hung_since = since
            log.warning("probe has not answered fact=%s", name)
        answer.reason = "the probe has not answered; this is its last answer"
        if answer.found is None:
            answer.reason = "the probe has not answered"

    def _take(self, name: str, answer: _Answer, found: Found, digest: str) -> None:
        if answer.hung_since is not None:
            log.info("probe answers again fact=%s", name)
        answer.hung_since = None
        answer.reason = found.reason
        answer.troubles = found.troubles
        # Unknown now is no reason to forget what was known.
        if found.value is not None or answer.found is None:
            answer.found, answer.digest = found, digest
            answer.at = time.monotonic()
        if name == "cpu" and found.value is not None:
            self._cpus = None

    # What it says ------------------------------------------------------------------

    def facts(self) -> Facts:
        now = time.monotonic()
        facts = {name: _fact(one, now) for name, one in self._answers.items()}
        said = "".join(
            f"{name} {one.digest} {one.reason}\n" for name, one in self._answers.items()
        )
        return Facts(hash=hashlib.sha256(said.encode()).hexdigest(), facts=facts)

    def value(self, name: str) -> Any:
        """The value of one fact; None: unknown."""
        found = self._answers[name].found
        return None if found is None else found.value

    def runs(self) -> Mapping[str, Run]:
        """By name, the probes that have run."""
        return {name: one.run for name, one in self._answers.items() if one.run}

    def problems(self) -> tuple[Problem, ...]:
        return tuple(one for found in self.by_fact().values() for one in found)

    def by_fact(self) -> dict[str, list[Problem]]:
        """What is wrong, by the fact it was found with."""
        now = time.monotonic()
        seen = {
            (one.code, one.where): now
            for answer in self._answers.values()
            for one in answer.troubles
        }
        self._since = {key: self._since.get(key, at) for key, at in seen.items()}
        return {
            name: [
                *(self._problem(one, now) for one in answer.troubles),
                *_hung(name, answer, now),
            ]
            for name, answer in self._answers.items()
        }

    def _problem(self, trouble: Trouble, now: float) -> Problem:
        return Problem(
            code=trouble.code,
            severity="error" if trouble.severity == "error" else "warning",
            what=trouble.what,
            where=trouble.where or None,
            fix=trouble.fix or None,
            since_s=now - self._since[trouble.code, trouble.where],
        )

    def cpus(self) -> Cpus:
        """The CPUs this process may use, in the shape that the engines count in."""
        value = self.value("cpu")
        if value is None:  # asked for before it was looked at; this cannot block
            return Cpus(allowed=tuple(sorted(os.sched_getaffinity(0))))
        if self._cpus is None:
            numa: list[dict[str, Any]] = self.value("numa") or []
            self._cpus = Cpus(
                allowed=tuple(numbers(value["allowed"])),
                quota=value.get("quota"),
                nodes=tuple(tuple(numbers(node["cpus"])) for node in numa),
            )
        return self._cpus

    def gpu_numbers(self) -> dict[str, int]:
        """CUDA's numbers by UUID, in the order that NVML counts. Slices have none."""
        return {
            card["uuid"]: card["index"]
            for card in self._cards()
            if "uuid" in card and "index" in card
        }

    def _cards(self) -> list[dict[str, Any]]:
        value: dict[str, Any] = self.value("gpus") or {}
        return value.get("gpus", [])

    def load(self) -> Load:
        """As of the last few seconds."""
        return self._load.load()


def _hung(name: str, answer: _Answer, now: float) -> list[Problem]:
    if answer.hung_since is None:
        return []
    return [
        Problem(
            code="probe_hung",
            severity="error",
            what="the probe has not answered, and its last answer stands",
            where=name,
            fix="a driver or a mount hangs: see dmesg, and reboot if it stays",
            since_s=now - answer.hung_since,
        )
    ]


def _ask(probe: Probe, answer: _Answer) -> tuple[Found, str]:
    """In the thread, which alone says when it is out of the probe."""
    try:
        kept = answer.found.memory if answer.found else None
        found = probe.ask(kept)
    except (OSError, ValueError) as error:
        # No process to be had, an answer that is none: what is not known of a machine
        # is no reason to leave its engines alone.
        return _failed(error)
    finally:
        answer.is_asked = False
    return found, _digest(found.value)


def _failed(error: Exception) -> tuple[Found, str]:
    log.warning("probe failed why=%s", error, exc_info=error)
    return Found(None, "the probe", f"the probe failed: {error}"), _digest(None)


def _digest(value: Any) -> str:
    lasting = msgspec.json.encode(_lasting(value), order="sorted")
    return hashlib.sha256(lasting).hexdigest()


def _lasting(value: Any) -> Any:
    """Without what changes all the time."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _lasting(one) for key, one in pairs.items() if key != "now"}
    if isinstance(value, list | tuple):
        return [_lasting(one) for one in cast("list[Any]", value)]
    return value


def _fact(answer: _Answer, now: float) -> Fact:
    found = answer.found
    if found is None or found.value is None:
        source = found.source if found else "not looked at yet"
        return Fact(source=source, age_s=0.0, reason=answer.reason or "unknown")
    return Fact(
        source=found.source,
        age_s=round(now - answer.at, 1),
        value=found.value if found.value is not None else UNSET,
        reason=answer.reason or None,
    )
