"""Keeps the engines that span nodes whole: all of a group's members run, or none.

Its own memory is only of when a group may be tried again; what it has decided stands in
the store, where the next leader finds it.
"""

import logging
import time
from functools import partial
from typing import Any

import anyio
import anyio.abc
import msgspec
from aiohttp import web
from msgspec import Struct

from llmgw.aio import Latest
from llmgw.backoff import delays
from llmgw.control.group import (
    Here,
    Member,
    State,
    Step,
    by_group,
    members_of,
    ports_of,
    step,
)
from llmgw.control.plane import Plane
from llmgw.control.sessions import Node
from llmgw.control.state import Desired, Part
from llmgw.errors import LlmgwError

log = logging.getLogger(__name__)

# A death is followed by a start at once if the group has served, else after FIRST
# seconds, doubling; after LOOP deaths a person is needed, and the pace is the slowest.
FIRST, LONGEST, LOOP = 5.0, 300.0, 5
# A burst of news is one look at the groups.
PAUSE = 0.02


class GroupView(Struct, kw_only=True, omit_defaults=True):
    """A group as an operator sees it."""

    id: str
    state: State
    reason: str | None = None
    restarts: int = 0
    generation: int
    members: list[dict[str, object]]


class _History:
    """How often a group has died, and when it may be tried again."""

    def __init__(self) -> None:
        self.deaths = 0
        self.death: str | None = None
        # Whether this attempt's death is counted: writing down what follows from it
        # may have to be tried more than once.
        self.is_buried = False
        self.again_at = 0.0
        self.ready_since: float | None = None
        self.pids: dict[tuple[str, str, int], int] = {}
        self.step = Step("waiting")
        self._delays = delays(FIRST, LONGEST)

    def begins(self) -> None:
        """Another attempt; its generation may be the last one's, if none was seen."""
        self.is_buried = False
        self.pids.clear()

    def died(self, now: float, why: str | None) -> None:
        if self.is_buried:
            return
        self.is_buried = True
        self.death = why
        served = None if self.ready_since is None else now - self.ready_since
        if served is not None and served > LONGEST:
            self.deaths = 0
            self._delays = delays(FIRST, LONGEST)
        self.deaths += 1
        at_once = served is not None and self.deaths == 1
        wait = LONGEST if self.is_loop else 0.0 if at_once else next(self._delays)
        self.again_at = now + wait
        self.ready_since = None

    @property
    def is_loop(self) -> bool:
        return self.deaths >= LOOP

    def is_other(self, one: Member) -> bool:
        status = one.status
        if one.now is None or status is None or status.pid is None:
            return False
        key = (one.node_id, one.id, status.generation)
        return self.pids.setdefault(key, status.pid) != status.pid


class Groups:
    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._histories: dict[str, _History] = {}
        self._found: dict[str, tuple[Desired, bool]] = {}
        self._looked = 0.0

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Look after them while this control plane leads, until cancelled."""
        task_status.started()
        plane = self._plane
        async with anyio.create_task_group() as group:
            news = anyio.Event()

            async def follow(latest: Latest[Any]) -> None:
                seen = -1
                while True:
                    seen, _ = await latest.newer_than(seen)
                    news.set()

            for each in (plane.sessions.news, plane.wanted, plane.role.lead):
                group.start_soon(follow, each)
            while True:
                with anyio.move_on_after(self._until_next()):
                    await news.wait()
                news = anyio.Event()
                if plane.is_leading():
                    await self._look()
                else:
                    self._histories.clear()
                await anyio.sleep(PAUSE)

    def views(self) -> list[GroupView]:
        """What the last look found."""
        return [
            GroupView(
                id=id,
                state=self._histories[id].step.state,
                reason=self._histories[id].step.reason,
                restarts=self._histories[id].deaths,
                generation=max(one.sent for one in members),
                members=[
                    {
                        "node_id": one.node_id,
                        "replica": one.id,
                        "rank": one.group["rank"],
                        "state": one.now or one.part.hold or "sent",
                    }
                    for one in members
                ],
            )
            for id, members in sorted(self._groups().items())
            if id in self._histories
        ]

    def _until_next(self) -> float:
        # What was due at the last look and stands yet is not hurried.
        due = [
            one.again_at - time.monotonic()
            for one in self._histories.values()
            if one.step.state in ("backoff", "crash_loop")
            and one.again_at > self._looked
        ]
        # What was not written, because the store did not take it, is tried again.
        return max(PAUSE, min([*due, 1.0])) if self._histories else float("inf")

    def _groups(self) -> dict[str, tuple[Member, ...]]:
        plane = self._plane
        found: list[Member] = []
        for node_id, desired in plane.store.desired.items():
            if not self._has_groups(node_id, desired):
                continue
            node = plane.sessions.nodes.get(node_id)
            found += members_of(
                node_id,
                desired.replicas,
                desired.parts,
                node.replicas if node else {},
                self._here(node_id, desired),
            )
        return by_group(found)

    def _has_groups(self, node_id: str, desired: Desired) -> bool:
        """Kept for each version of what is wanted: most nodes of most sites have none,
        and each heartbeat with news would read all of them again.
        """
        kept = self._found.get(node_id)
        if kept is None or kept[0] is not desired:
            kept = (desired, any(b'"group"' in bytes(raw) for raw in desired.replicas))
            self._found[node_id] = kept
        return kept[1]

    def _here(self, node_id: str, desired: Desired) -> Here:
        node = self._plane.sessions.nodes.get(node_id)
        if node is None:
            return Here()
        return Here(
            is_live=node.state == "live",
            draining=desired.drain or (node.heartbeat or node.register).draining,
            address=node.register.mgmt_addr,
            builds=_builds(node),
        )

    async def _look(self) -> None:
        self._looked = time.monotonic()
        groups = self._groups()
        for id in set(self._histories) - set(groups):
            del self._histories[id]
        for id, members in groups.items():
            history = self._histories.setdefault(id, _History())
            others = [
                taken
                for other, some in groups.items()
                if other != id and (taken := ports_of(some)) is not None
            ]
            try:
                await self._keep(id, members, history, others)
            except (LlmgwError, web.HTTPError) as error:
                log.warning("group not written yet group=%s error=%s", id, error)

    async def _keep(
        self,
        id: str,
        members: tuple[Member, ...],
        history: _History,
        taken: list[range],
    ) -> None:
        members = tuple(
            msgspec.structs.replace(one, is_other=history.is_other(one))
            for one in members
        )
        now = time.monotonic()
        before = history.step
        found = step(members, must_wait=now < history.again_at, taken=taken)
        is_death = found.state == "backoff" and found.parts is not None
        if found.state == "ready" and history.ready_since is None:
            history.ready_since = now
        if found.state == "starting" and found.parts is not None:
            history.begins()
        if is_death:
            history.died(now, found.reason)
        if found.state == "backoff" and history.is_loop:
            found = Step("crash_loop", found.reason, found.parts)
        is_wait = found.state in ("backoff", "crash_loop") and not is_death
        if is_wait:
            found = Step(found.state, history.death or found.reason)
        history.step = found
        # A death is told when it is seen, and its wait is no second one.
        if (found.state, found.reason) != (before.state, before.reason) and not is_wait:
            self._tell(id, members, found)
        for one, part in zip(members, found.parts or (), strict=False):
            if part != one.part:
                await self._plane.want(one.node_id, partial(_with, one, part))

    def _tell(self, id: str, members: tuple[Member, ...], found: Step) -> None:
        why = f": {found.reason}" if found.reason else ""
        text = f"group {id} is {found.state}{why}"
        log.info("group changed group=%s state=%s%s", id, found.state, why)
        self._plane.sessions.note(members[0].node_id, "group", text)


def _builds(node: Node) -> tuple[dict[str, Any], ...] | None:
    fact = node.facts.facts.get("builds") if node.facts else None
    try:
        return msgspec.convert(fact and fact.value, tuple[dict[str, Any], ...])
    except msgspec.ValidationError:  # not told, or not in words known here
        return None


def _with(one: Member, part: Part, old: Desired | None) -> Desired:
    """*old* with *part*; as it is, if the member was written anew meanwhile."""
    if old is None or old.parts.get(one.id, Part()) != one.part:
        return old or Desired()
    return msgspec.structs.replace(old, parts={**old.parts, one.id: part})
