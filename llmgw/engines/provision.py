"""The builds that a control plane wants to have at hand: installed as soon as asked.

Only kinds of engine that the node's file has turned on, and for which it names no
program itself; never `command`, which could then be any program at all.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.abc

from llmgw.aio import Latest
from llmgw.backoff import delays, jittered
from llmgw.config import keys
from llmgw.engines.install import Fetch, Wish, download, install
from llmgw.engines.place import Settings
from llmgw.errors import EngineError, Unreachable
from llmgw.wire import Build, Problem

log = logging.getLogger(__name__)

FIRST, LONGEST = 2.0, 600.0


class Provision:
    """Set `wanted` to what the snapshot says; `changed` counts what came of it, and
    `installed` the builds among that.
    """

    def __init__(
        self,
        engines_dir: Path,
        settings: keys.Engines,
        *,
        fetch: Fetch = download,
        first: float = FIRST,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.wanted: Latest[tuple[Build, ...]] = Latest(())
        self.changed: Latest[int] = Latest(0)
        # Apart: a snapshot is news too, and looking at the builds again costs.
        self.installed: Latest[int] = Latest(0)
        self._engines_dir = engines_dir
        self._settings = settings
        self._fetch = fetch
        self._first = first
        self._dice = dice
        self._problems: dict[Build, Problem] = {}
        self._over: set[Build] = set()

    def problems(self) -> tuple[Problem, ...]:
        """The builds that are wanted and not to be had, each with the reason."""
        return tuple(self._problems.values())

    async def settled(self, name: str | None) -> None:
        """Return once the build *name* is here, or will not be, or is nobody's wish.

        A replica often comes in the same snapshot as its build. Without waiting it
        would be refused for good, a minute before its build was there.
        """
        seen = self.changed.number
        while any(
            build.name == name and build not in self._over
            for build in self.wanted.value
        ):
            seen, _ = await self.changed.newer_than(seen)

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Install what is wanted, one after another, until cancelled.

        A newer wish ends the work on an older one. What cannot be is tried once, what
        may come later is tried again.
        """
        task_status.started()
        seen = -1
        done: set[Build] = set()
        while True:
            seen, wanted = await self.wanted.newer_than(seen)
            self.changed.set(
                self.changed.value
            )  # who waits for a build may wait no more
            if set(wanted) <= done and not self._problems:
                continue
            self._problems.clear()
            self._over = set(done)
            async with anyio.create_task_group() as group:
                group.start_soon(self._install_all, wanted, done)
                await self._until_other(seen, wanted)
                group.cancel_scope.cancel()

    async def _until_other(self, seen: int, wanted: tuple[Build, ...]) -> None:
        """Snapshots repeat themselves; the same wish is no reason to begin anew."""
        while self.wanted.value == wanted:
            seen, _ = await self.wanted.newer_than(seen)

    async def _install_all(self, wanted: tuple[Build, ...], done: set[Build]) -> None:
        async with anyio.create_task_group() as group:
            for build in wanted:
                if build not in done:
                    group.start_soon(self._install, build, done)

    async def _install(self, build: Build, done: set[Build]) -> None:
        for delay in delays(self._first, LONGEST):
            try:
                _admit(build, self._settings)
                await install(_wish(build), self._engines_dir, fetch=self._fetch)
            except Unreachable as error:
                self._say(build, error)
                await anyio.sleep(jittered(delay, self._dice()))
            except EngineError as error:
                self._over.add(build)
                self._say(build, error)
                return
            else:
                done.add(build)
                self._over.add(build)
                self._problems.pop(build, None)
                log.info("build installed name=%s url=%s", build.name, build.url)
                self.installed.set(self.installed.value + 1)
                self.changed.set(self.changed.value + 1)
                return

    def _say(self, build: Build, error: EngineError | Unreachable) -> None:
        self._problems[build] = Problem(
            code="build_missing",
            severity="warning",
            what=f"the build {build.name} cannot be installed: {error.what}",
            where=error.where or None,
            fix=error.fix or None,
        )
        self.changed.set(self.changed.value + 1)


def _admit(build: Build, settings: keys.Engines) -> None:
    if build.engine == "command" or build.engine not in keys.Engines.__struct_fields__:
        raise EngineError(
            f"a control plane may not install programs for {build.engine!r}"
        )
    section: Settings = getattr(settings, build.engine)
    if not section.enabled:
        raise EngineError(
            f"the engine {build.engine} is turned off on this node",
            where=f"engines.{build.engine}.enabled",
        )
    if section.path is not None:
        raise EngineError(
            f"this node's file names its program: {section.path}",
            where=f"engines.{build.engine}.path",
        )


def _wish(build: Build) -> Wish:
    return Wish(
        name=build.name, url=build.url, sha256=build.sha256, engine=build.engine
    )
