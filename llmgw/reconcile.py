"""What to do so that what runs becomes what is wanted. Decides, and does nothing.

    wanted, not there                      start
    wanted, there as wanted                keep: a survivor is handed its order again
    wanted otherwise                       stop, and start once it is gone
      … with replace = "start_first"       start beside it, stop it once that is ready
    wanted, there as wanted, but dead      nothing, until its generation changes
    not wanted                             stop
    a member of a group                    with all its members here, or not at all

A replica runs under a name: its id, or for one that was started beside its
predecessor, the id, a dot and the beginning of its digest. An id has no dots.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from llmgw.wire import Replica, Restart, State, Wanted

SERVING: frozenset[State] = frozenset({"ready", "busy"})
# A member that died is not tried again before its node has seen that it is down, and
# its group with it: one that came back at once would be alone with peers that wait for
# the one before it.
GROUP_PAUSE = 5.0
DEAD: frozenset[State] = frozenset({"failed", "crash_loop"})


class Running(Struct, frozen=True):
    """A replica that the supervisor holds, as far as deciding needs it.

    *gpus* are those it was given, where that is known. *is_adopted*: an earlier agent
    started it.
    """

    name: str
    generation: int
    digest: str
    state: State
    gpus: tuple[str, ...] = ()
    is_adopted: bool = False

    @property
    def id(self) -> str:
        return replica_id(self.name)

    @property
    def is_gone(self) -> bool:
        return self.state == "stopped"

    @property
    def is_leaving(self) -> bool:
        return self.state in ("stopping", "stopped")


class Start(Struct, frozen=True):
    """Nothing runs under *name*: start *wanted* under it."""

    wanted: Wanted
    name: str


class Keep(Struct, frozen=True):
    """It runs as wanted; whoever adopted it does not know its order and is told."""

    wanted: Wanted
    name: str


class Stop(Struct, frozen=True):
    """For good."""

    name: str


Action = Start | Stop | Keep


def plan(
    desired: tuple[Wanted, ...], running: tuple[Running, ...], *, draining: bool
) -> tuple[Action, ...]:
    """What to do now; stops first. Plan again after every change of *running*.

    *desired* is one complete snapshot: what it lacks is stopped. While *draining*
    nothing is started, and so nothing is stopped for the sake of a successor either;
    what falls its keeper starts again, but for a group, which ends.
    """
    running = tuple(one for one in running if not one.is_gone)
    here: dict[str, list[Running]] = {one.replica.id: [] for one in desired}
    actions: list[Action] = []
    for one in running:
        if one.id in here:
            here[one.id].append(one)
        elif not one.is_leaving:
            actions.append(Stop(one.name))
    for one in desired:
        if one.replica.group is None:
            actions += _replica(one, here[one.replica.id], draining=draining)
    for members in _groups(desired):
        actions += _group(members, here, draining=draining)
    return _in_order(actions, running)


def _in_order(
    actions: list[Action], running: tuple[Running, ...]
) -> tuple[Action, ...]:
    """Stops first; a start waits for its GPUs while one that is leaving holds them.

    A model that loads beside one that unloads runs out of memory, and is then held to
    be a bad launch.
    """
    ended = {action.name for action in actions if isinstance(action, Stop)}
    held = {
        gpu
        for one in running
        if one.is_leaving or one.name in ended
        for gpu in one.gpus
    }
    now = [
        action
        for action in actions
        if not (isinstance(action, Start) and held & set(action.wanted.replica.gpus))
    ]
    return tuple(sorted(now, key=lambda action: not isinstance(action, Stop)))


def _replica(
    wanted: Wanted, here: list[Running], *, draining: bool
) -> Iterator[Action]:
    now = [one for one in here if one.digest == wanted.digest]
    old = [one for one in here if one.digest != wanted.digest]
    if now:
        yield from _settle(wanted, now[0], old)
    elif not draining:
        yield from _replace(wanted, old)


def _settle(wanted: Wanted, now: Running, old: list[Running]) -> Iterator[Action]:
    """It is there: keep it, and end its predecessor when it can be spared."""
    if now.state not in DEAD and not now.is_leaving:
        yield Keep(wanted, now.name)
    if now.state in SERVING or not _starts_first(wanted.replica):
        yield from _stop(old)


def _replace(wanted: Wanted, old: list[Running]) -> Iterator[Action]:
    name = wanted.replica.id
    if not old:
        yield Start(wanted, name)
    elif all(_is_dead(one, wanted) for one in old):
        return
    elif _starts_first(wanted.replica) and any(one.state in SERVING for one in old):
        taken = {one.name for one in old}
        yield Start(wanted, beside(wanted) if name in taken else name)
        # A successor that never served is in the way of the next one.
        yield from _stop(one for one in old if one.state not in SERVING)
    else:
        yield from _stop(old)


def _is_dead(one: Running, wanted: Wanted) -> bool:
    """It ended badly, and *wanted* gives no reason to expect better.

    What could not be started at all is tried again for a new generation only; what
    kept crashing, for anything new in what is wanted.
    """
    if one.state == "failed":
        return one.generation == wanted.replica.generation
    return one.state == "crash_loop" and one.digest == wanted.digest


def _group(
    members: list[Wanted], here: dict[str, list[Running]], *, draining: bool
) -> Iterator[Action]:
    """All or none: the members on this node start in one plan and end together.

    An engine that spans nodes is of no use without one of its members, and holds the
    memory of all. The keeper of the one that is down says when it is tried again; the
    others follow it. Members on other nodes are the control plane's, which restarts
    them all by a new generation.
    """
    held = [(one, wanted) for wanted in members for one in here[wanted.replica.id]]
    down = {one.name for one, wanted in held if _is_down(one, wanted)}
    old = [one for one, wanted in held if one.digest != wanted.digest]
    current = {
        one.id: one
        for one, wanted in held
        if one.digest == wanted.digest and not one.is_leaving
    }
    missing = [one for one in members if one.replica.id not in current]
    # One that this agent found running has run without those that are missing, and
    # while draining they never come.
    is_half = draining or any(one.is_adopted for one in current.values())
    is_broken = bool(missing) and is_half and not old
    if down:
        # Its keeper starts one that is down again, and the others follow: not while
        # draining, so that it would be alone. What failed is remembered as it is.
        ends = {one.name for one, _ in held if one.state != "failed"}
        ends -= set() if draining else down
        yield from _stop(one for one, _ in held if one.name in ends)
    elif is_broken or (old and not draining):
        yield from _stop(one for one, _ in held)
    else:
        for wanted in members:
            if wanted.replica.id in current:
                yield Keep(wanted, current[wanted.replica.id].name)
        if not draining and all(not here[one.replica.id] for one in missing):
            yield from (Start(one, one.replica.id) for one in missing)


def _is_down(one: Running, wanted: Wanted) -> bool:
    if one.state == "backoff":
        return one.digest == wanted.digest
    return _is_dead(one, wanted)


def _groups(desired: Iterable[Wanted]) -> Iterable[list[Wanted]]:
    groups: dict[str, list[Wanted]] = {}
    for one in desired:
        if one.replica.group is not None:
            groups.setdefault(one.replica.group.id, []).append(one)
    return groups.values()


def _stop(several: Iterable[Running]) -> Iterator[Action]:
    return (Stop(one.name) for one in several if not one.is_leaving)


def _starts_first(replica: Replica) -> bool:
    """Two cannot have one port, whatever was asked."""
    return replica.replace == "start_first" and replica.port is None


def restart(replica: Replica) -> Restart | None:
    """When its keeper tries it again: as it says, but not in haste in a group."""
    said = replica.restart
    if replica.group is None:
        return said
    said = said or Restart()
    base = max(said.base_s or 0.0, GROUP_PAUSE)
    return structs.replace(said, base_s=base, at_once=False)


def beside(wanted: Wanted) -> str:
    """The name of a replica while its predecessor still has its id."""
    return f"{wanted.replica.id}.{wanted.digest[:8]}"


def replica_id(name: str) -> str:
    """The id of the replica that runs under *name*."""
    return name.partition(".")[0]
