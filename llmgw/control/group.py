"""One engine that spans nodes, and what becomes of it. Decides, and does nothing.

    waiting     its members are kept back until all can start at once
    starting    all members were sent to their nodes; ready once all of them serve
    backoff     a member died: all are taken back, and sent again as a new generation
    failed      a member cannot be, or was stopped there: the others are taken back

An operator writes the members as replicas of their nodes and may leave out of their
`group` what only a control plane can know: head, port, members and build_digest.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from llmgw.control.settings import joined
from llmgw.control.state import Part
from llmgw.wire import ReplicaStatus

State = Literal["waiting", "starting", "ready", "backoff", "crash_loop", "failed"]

SERVING = ("ready", "busy")
DIED = ("backoff", "crash_loop")
# No process, and none will be started by itself.
OVER = ("stopped", "failed")
# The last numbers of the range that agents lease from by default, so that a firewall
# that lets engines through lets these through, and leases seldom get that far.
LAST_PORT = 20999


class Here(Struct, frozen=True, kw_only=True):
    """A member's node. *builds* as the node's facts have them; None: not told yet."""

    is_live: bool = False
    draining: bool = False
    address: str | None = None
    builds: tuple[dict[str, Any], ...] | None = None


class Member(Struct, frozen=True, kw_only=True):
    """A replica that an operator wants on *node_id*, and how it is doing there.

    *is_other*: another process than the one that began this attempt, as after a reboot.
    """

    node_id: str
    id: str
    engine: str
    build: str | None
    generation: int
    group: dict[str, Any]
    part: Part
    status: ReplicaStatus | None
    here: Here
    is_other: bool = False

    @property
    def name(self) -> str:
        return f"{self.id} on {self.node_id}"

    @property
    def sent(self) -> int:
        """The generation under which its node has it, or last had it."""
        return max(self.generation, self.part.generation)

    @property
    def now(self) -> str | None:
        """Its state in this attempt; None while its node has not spoken of it."""
        status = self.status
        if status is None or status.generation != self.sent:
            return None
        return status.state

    @property
    def is_gone(self) -> bool:
        return self.status is None or self.status.state in OVER


class Step(Struct, frozen=True):
    """How a group is, why, and the part that each member is to have from now on."""

    state: State
    reason: str | None = None
    parts: tuple[Part, ...] | None = None


def members_of(
    node_id: str,
    raws: Iterable[bytes],
    parts: Mapping[str, Part],
    statuses: Mapping[str, ReplicaStatus],
    here: Here,
) -> list[Member]:
    """The replicas of one node that belong to a group."""
    found: list[Member] = []
    for raw in raws:
        replica = msgspec.json.decode(raw, type=dict[str, Any])
        if not replica.get("group"):
            continue
        found.append(
            Member(
                node_id=node_id,
                id=replica["id"],
                engine=replica["engine"],
                build=replica.get("build"),
                generation=replica["generation"],
                group=replica["group"],
                part=parts.get(replica["id"], Part()),
                status=statuses.get(replica["id"]),
                here=here,
            )
        )
    return found


def by_group(members: Iterable[Member]) -> dict[str, tuple[Member, ...]]:
    """By the group's id, each in the order of its ranks."""
    found: dict[str, list[Member]] = {}
    for one in members:
        found.setdefault(str(one.group["id"]), []).append(one)
    return {
        id: tuple(sorted(some, key=lambda one: (one.group["rank"], one.node_id)))
        for id, some in found.items()
    }


def step(
    members: tuple[Member, ...], *, must_wait: bool, taken: Iterable[range] = ()
) -> Step:
    """*must_wait*: it died too short a time ago to be tried again.

    *taken* are the ports that other groups were given.
    """
    if wrong := _misfit(members):
        return Step("failed", wrong, _all(members, "down"))
    held = [one for one in members if one.part.hold]
    if not held:
        return _of_sent(members)
    if len(held) == len(members):
        return _of_held(members, must_wait=must_wait, taken=taken)
    kept_down = all(one.part.hold == "down" for one in held)
    lost = [one for one in members if not one.part.hold and one.now in OVER]
    if kept_down and len(lost) + len(held) == len(members):
        return Step("failed", _why(lost))
    # Something of it was written anew, or somebody started it on its node.
    return Step("waiting", "its members end first", _all(members, "waiting"))


def _misfit(members: tuple[Member, ...]) -> str | None:
    """Why these are no whole group, whatever their nodes say."""
    first = members[0]
    size: int = first.group["size"]
    ranks = [one.group["rank"] for one in members]
    if any(one.group["size"] != size for one in members):
        return "its members do not agree on its size"
    if any(one.engine != first.engine for one in members):
        return "its members are of different engines"
    if ranks != list(range(size)):
        had = ", ".join(map(str, ranks))
        return f"it has the ranks {had}, and its size is {size}"
    return None


def _of_sent(members: tuple[Member, ...]) -> Step:
    """All of them are with their nodes."""
    if died := [one for one in members if one.now in DIED or one.is_other]:
        return Step("backoff", _why(died), _all(members, "waiting"))
    if lost := [one for one in members if one.now in OVER]:
        parts = tuple(
            one.part if one in lost else _held(one, "down") for one in members
        )
        return Step("failed", _why(lost), parts)
    if all(one.now in SERVING for one in members):
        return Step("ready")
    return Step("starting")


def _of_held(
    members: tuple[Member, ...], *, must_wait: bool, taken: Iterable[range]
) -> Step:
    """None of them is: all are sent once all can start."""
    reason = _hindrance(members)
    if reason is None and must_wait:
        return Step("backoff", "it is tried again after a while")
    if reason is None:
        reason, filled = _filled(members, taken)
        if reason is None:
            return Step("starting", None, _released(members, filled))
    return Step("waiting", reason, _all(members, "waiting"))


def _hindrance(members: tuple[Member, ...]) -> str | None:
    for one in members:
        if not one.here.is_live:
            return f"{one.node_id} is not connected"
        if one.here.draining:
            return f"{one.node_id} drains"
    going = [one.name for one in members if not one.is_gone]
    if going:
        return f"of its last run, {', '.join(going)} has not ended"
    return None


def _filled(
    members: tuple[Member, ...], taken: Iterable[range]
) -> tuple[str | None, dict[str, Any]]:
    """What the operator left out; or why it cannot be said."""
    addresses: list[str] = []
    for one in members:
        if one.here.address is None:
            return f"{one.node_id} has no address yet", {}
        addresses.append(one.here.address)
    digest, reason = _digest(members)
    if reason is not None:
        return reason, {}
    said = {**members[0].group}
    port = said.get("port") or free_port(len(members), taken)
    listed = [joined(host, port + rank) for rank, host in enumerate(addresses)]
    return None, {
        "head": said.get("head") or addresses[0],
        "port": port,
        "members": said.get("members") or listed,
        "build_digest": digest,
    }


def _digest(members: tuple[Member, ...]) -> tuple[str | None, str | None]:
    """That of the one build of all; or the reason why there is none."""
    found: dict[str, str] = {}
    for one in members:
        written = one.group.get("build_digest")
        digest, reason = (written, None) if written else _digest_on(one)
        if digest is None:
            return None, reason
        found[one.node_id] = digest
    if len(set(found.values())) > 1:
        differ = ", ".join(f"{node}: {digest}" for node, digest in found.items())
        return None, f"its nodes have different builds ({differ}); install one on all"
    return next(iter(found.values())), None


def _digest_on(one: Member) -> tuple[str | None, str | None]:
    """Which of several builds a node takes is the node's own affair: it has to be
    named, where there is more than one.
    """
    if one.here.builds is None:
        return None, f"{one.node_id} has not told its builds yet"
    fitting = [
        build
        for build in one.here.builds
        if build.get("engine") == one.engine and one.build in (None, build.get("name"))
    ]
    if not fitting:
        named = one.build or f"of {one.engine}"
        return None, f"{one.node_id} has no build {named}"
    digests = {build.get("digest") for build in fitting}
    if len(digests) > 1:
        names = ", ".join(sorted(str(build.get("name")) for build in fitting))
        return None, f"{one.node_id} has the builds {names}: name one in the replica"
    digest = digests.pop()
    if digest is None:
        return None, f"nothing proves what build {one.node_id} has: install one"
    return str(digest), None


def free_port(size: int, taken: Iterable[range]) -> int:
    """The first of *size* numbers in a row that no other group has."""
    ranges = list(taken)
    for first in itertools.count(LAST_PORT + 1 - size, -1):
        wanted = range(first, first + size)
        if not any(set(wanted) & set(one) for one in ranges):
            return first
    raise AssertionError("unreachable: the count has no end")


def ports_of(members: tuple[Member, ...]) -> range | None:
    """What it was given, or was written for it."""
    for one in members:
        port = {**one.part.filled, **one.group}.get("port")
        if port:
            return range(port, port + len(members))
    return None


def _released(members: tuple[Member, ...], filled: dict[str, Any]) -> tuple[Part, ...]:
    """A generation that no node has seen, so that whatever one says of it is of now."""
    seen = [one.status.generation for one in members if one.status]
    newest = max([one.sent for one in members] + [number + 1 for number in seen])
    return tuple(
        Part(
            hold=None,
            generation=newest if seen else one.sent,
            filled={k: v for k, v in filled.items() if not one.group.get(k)},
        )
        for one in members
    )


def _all(
    members: tuple[Member, ...], hold: Literal["waiting", "down"]
) -> tuple[Part, ...]:
    return tuple(_held(one, hold) for one in members)


def _held(one: Member, hold: Literal["waiting", "down"]) -> Part:
    return msgspec.structs.replace(one.part, hold=hold, generation=one.sent)


def _why(members: Iterable[Member]) -> str:
    said: list[str] = []
    for one in members:
        assert one.status, "it has a state"
        reason = f": {one.status.reason}" if one.status.reason else ""
        state = "another process" if one.is_other else one.status.state
        said.append(f"{one.name} is {state}{reason}")
    return "; ".join(said)
