"""What is wanted here and the plan does nothing for, and why: for a person who asks.

A plan says what to do now. To who wonders why nothing happens an empty one says that
nothing is wanted, which is rarely so.
"""

from collections.abc import Collection, Iterator
from typing import Literal

from msgspec import Struct

from llmgw.reconcile import DEAD, Action, Stop, replica_id
from llmgw.wire import ReplicaStatus, State, Wanted

# When it is tried again, or comes to its turn.
AGAIN: dict[State, str] = {
    "failed": "it is tried again once it is wanted with a new generation, or the "
    "agent is reloaded",
    "crash_loop": "it is tried again by itself, at the slowest pace",
    "backoff": "it is tried again by itself",
    "stopping": "it starts once that has ended",
}


class Waiting(Struct, frozen=True, kw_only=True):
    """*action*: `hold` where a person or a drain holds it, `wait` where time does."""

    action: Literal["hold", "wait"]
    name: str
    why: str
    fix: str = ""


def waiting(
    wanted: tuple[Wanted, ...],
    statuses: tuple[ReplicaStatus, ...],
    actions: tuple[Action, ...],
    *,
    held: Collection[str],
    draining: bool,
) -> Iterator[Waiting]:
    """*held*: the digests of what a person stopped."""
    here: dict[str, list[ReplicaStatus]] = {one.replica.id: [] for one in wanted}
    for one in statuses:
        if one.state != "stopped":
            here.setdefault(replica_id(one.id), []).append(one)
    cared_for = {replica_id(a.name) for a in actions if not isinstance(a, Stop)}
    for one in wanted:
        name = one.replica.id
        if one.digest in held:
            yield Waiting(
                action="hold",
                name=name,
                why="is wanted, and stopped by a person here",
                fix=f"`llmgw engines start {name}` lets it run again",
            )
        elif name not in cared_for:
            yield _waits(one, here[name], draining=draining)
    touched = {replica_id(action.name) for action in actions}
    for name in sorted(here.keys() - {one.replica.id for one in wanted} - touched):
        if any(one.state != "stopping" for one in here[name]):
            yield Waiting(
                action="wait",
                name=name,
                why="runs, and was not wanted when a control plane was last heard",
                fix=f"its next word stops it, or `llmgw engines stop {name}`",
            )


def _waits(wanted: Wanted, here: list[ReplicaStatus], *, draining: bool) -> Waiting:
    name = wanted.replica.id
    now = [one for one in here if one.spec_digest == wanted.digest]
    if draining and not now:
        goes_on = "otherwise than it runs, " if here else ""
        return Waiting(
            action="hold",
            name=name,
            why=f"is wanted {goes_on}and this node drains",
            fix="`llmgw undrain` ends it",
        )
    # Of those before it, the one that is to be tried no more is what it waits for.
    for one in now or sorted(here, key=lambda one: one.state not in DEAD):
        why = f"{one.state}: {one.reason}" if one.reason else one.state
        return Waiting(
            action="wait",
            name=name,
            why=why,
            fix=AGAIN.get(one.state, AGAIN["stopping"]),
        )
    why = "waits for GPUs that another still holds, or for members of its group"
    return Waiting(action="wait", name=name, why=why)
