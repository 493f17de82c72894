"""Performing a plan reaches what is wanted, and nothing is stopped without a reason."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.reconcile import (
    DEAD,
    GROUP_PAUSE,
    SERVING,
    Action,
    Keep,
    Running,
    Start,
    Stop,
    beside,
    plan,
    replica_id,
    restart,
)
from llmgw.wire import Group, Replica, Restart, State, Wanted, digest


def wanted(replica: Replica) -> Wanted:
    return Wanted(replica, digest(msgspec.json.encode(replica)))


def want(
    name: str = "a", generation: int = 1, *, start_first: bool = False, group: str = ""
) -> Wanted:
    return wanted(
        Replica(
            id=name,
            generation=generation,
            engine="llamacpp",
            replace="start_first" if start_first else "stop_first",
            group=Group(id=group, rank=0, size=2, head="h", port=1) if group else None,
        )
    )


def runs(one: Wanted, state: State = "ready", name: str | None = None) -> Running:
    return Running(
        name or one.replica.id,
        one.replica.generation,
        one.digest,
        state,
        one.replica.gpus,
    )


def planned(
    desired: list[Wanted], running: list[Running], *, draining: bool = False
) -> list[Action]:
    return list(plan(tuple(desired), tuple(running), draining=draining))


# One at a time ----------------------------------------------------------------------


def test_what_is_not_there_is_started_and_what_is_there_is_kept() -> None:
    one, two = want("a"), want("b")

    assert planned([one, two], [runs(two)]) == [Start(one, "a"), Keep(two, "b")]


def test_what_a_complete_snapshot_lacks_is_stopped_once() -> None:
    """T58: also when it was removed while the node was away."""
    one = want()

    assert planned([], [runs(one)]) == [Stop("a")]
    assert planned([], [runs(one, "stopping")]) == []
    assert planned([], [runs(one, "stopped")]) == []


def test_another_generation_waits_until_the_old_one_is_gone() -> None:
    old, new = want(), want(generation=2)

    assert planned([new], [runs(old)]) == [Stop("a")]
    assert planned([new], [runs(old, "stopping")]) == []
    assert planned([new], [runs(old, "stopped")]) == [Start(new, "a")]


def test_start_first_ends_the_old_one_only_when_the_new_one_serves() -> None:
    old, new = want(), want(generation=2, start_first=True)
    name = beside(new)

    assert planned([new], [runs(old)]) == [Start(new, name)]
    assert planned([new], [runs(old), runs(new, "starting", name)]) == [Keep(new, name)]
    assert planned([new], [runs(old), runs(new, "ready", name)]) == [
        Stop("a"),
        Keep(new, name),
    ]
    assert replica_id(name) == "a"


def test_a_bad_new_generation_never_ends_the_old_one_that_serves() -> None:
    old, bad = want(), want(generation=2, start_first=True)
    held = [runs(old), runs(bad, "failed", beside(bad))]

    assert planned([bad], held) == []

    good = want(generation=3, start_first=True)
    assert planned([good], held) == [Stop(beside(bad)), Start(good, beside(good))]


def test_start_first_gives_way_where_two_cannot_be() -> None:
    old = want()
    fixed = wanted(
        Replica(
            id="a", generation=2, engine="command", port=8000, replace="start_first"
        )
    )

    assert planned([fixed], [runs(old)]) == [Stop("a")]
    new = want(generation=2, start_first=True)
    assert planned([new], [runs(old, "starting")]) == [Stop("a")]


@pytest.mark.parametrize("state", sorted(DEAD))
def test_a_dead_one_is_tried_again_for_a_new_generation_only(state: State) -> None:
    dead = want()

    assert planned([dead], [runs(dead, state)]) == []
    assert planned([want(generation=2)], [runs(dead, state)]) == [Stop("a")]


def test_what_failed_is_not_tried_again_for_other_words_of_one_generation() -> None:
    failed = want()
    changed = want(start_first=True)

    assert changed.digest != failed.digest
    assert planned([changed], [runs(failed, "failed")]) == []


def test_a_start_waits_for_the_gpus_of_one_that_is_leaving() -> None:
    old = wanted(Replica(id="a", generation=1, engine="vllm", gpus=("GPU-1",)))
    new = wanted(Replica(id="b", generation=1, engine="vllm", gpus=("GPU-1",)))
    other = wanted(Replica(id="c", generation=1, engine="vllm", gpus=("GPU-2",)))

    assert planned([new, other], [runs(old)]) == [Stop("a"), Start(other, "c")]
    assert planned([new], [runs(old, "stopping")]) == []
    assert planned([new], [runs(old, "stopped")]) == [Start(new, "b")]


def test_a_draining_node_starts_nothing_and_loses_nothing_that_is_wanted() -> None:
    """T60: what serves goes on until the control plane moves it away."""
    old, new, other = want(), want(generation=2), want("b")

    assert planned([new, other], [runs(old)], draining=True) == []
    assert planned([old], [runs(old), runs(other)], draining=True) == [
        Stop("b"),
        Keep(old, "a"),
    ]


# Groups -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["backoff", "crash_loop"])
def test_a_group_that_a_member_leaves_while_draining_ends_whole(state: State) -> None:
    """The one that was down was started again alone, and held its GPUs for nobody."""
    one, two = want("a", group="g"), want("b", group="g")

    assert planned([one, two], [runs(one, state), runs(two)], draining=True) == [
        Stop("a"),
        Stop("b"),
    ]
    assert planned([one, two], [runs(one, "failed"), runs(two)], draining=True) == [
        Stop("b")
    ]
    half = [runs(one, "starting"), runs(two, "stopping")]
    assert planned([one, two], half, draining=True) == [Stop("a")]
    newer = [want("a", 2, group="g"), two]
    assert planned(newer, [runs(one), runs(two)], draining=True) == [Keep(two, "b")]


def test_the_members_of_a_group_start_together_or_not_at_all() -> None:
    """T90."""
    one, two = want("a", group="g"), want("b", group="g")

    assert planned([one, two], []) == [Start(one, "a"), Start(two, "b")]
    assert planned([one, two], [runs(one), runs(two)]) == [
        Keep(one, "a"),
        Keep(two, "b"),
    ]
    assert planned([one, two], [runs(one, "failed")]) == []


@pytest.mark.parametrize("state", [*sorted(DEAD), "backoff"])
def test_a_member_that_is_down_ends_its_group(state: State) -> None:
    """T90: whole group stopped, and nobody else."""
    one, two, bystander = want("a", group="g"), want("b", group="g"), want("c")

    held = [runs(one, state), runs(two), runs(bystander)]
    assert planned([one, two, bystander], held) == [Stop("b"), Keep(bystander, "c")]
    assert planned([one, two], [runs(one, state), runs(two, "stopping")]) == []
    assert planned([one, two], [runs(one, state), runs(two, "stopped")]) == []


def test_when_its_keeper_tries_it_again_the_others_start_too() -> None:
    """T90: restarted together, when the one that died is due."""
    one, two = want("a", group="g"), want("b", group="g")

    assert planned([one, two], [runs(one, "starting"), runs(two, "stopping")]) == [
        Keep(one, "a")
    ]
    assert planned([one, two], [runs(one, "starting"), runs(two, "stopped")]) == [
        Keep(one, "a"),
        Start(two, "b"),
    ]


@pytest.mark.parametrize("state", sorted(DEAD))
def test_a_new_generation_starts_a_dead_group_together(state: State) -> None:
    """T90."""
    one, two = want("a", group="g"), want("b", group="g")
    again = [want("a", 2, group="g"), want("b", 2, group="g")]

    held = [runs(one, state), runs(two, "stopped")]
    assert planned(again, held) == [Stop("a")]
    held = [runs(one, "stopped"), runs(two, "stopped")]
    assert planned(again, held) == [Start(again[0], "a"), Start(again[1], "b")]


def test_a_member_that_vanished_takes_the_others_with_it() -> None:
    """T90: it died while no agent looked; the one that was found waits in vain."""
    one, two = want("a", group="g"), want("b", group="g")
    found = msgspec.structs.replace(runs(one), is_adopted=True)

    assert planned([one, two], [found]) == [Stop("a")]
    assert planned([one, two], [runs(one, "stopping")]) == []
    assert planned([one, two], []) == [Start(one, "a"), Start(two, "b")]


def test_members_of_one_group_are_replaced_together() -> None:
    one, two = want("a", group="g"), want("b", group="g")
    newer = want("b", 2, group="g")

    assert planned([one, newer], [runs(one), runs(two)]) == [Stop("a"), Stop("b")]
    assert planned([one, newer], [runs(one, "stopped"), runs(two, "stopping")]) == []


def test_a_member_is_down_for_long_enough_to_be_seen() -> None:
    """T90: one that came back in 50 ms was never seen to be down by its group."""
    alone = want("a").replica
    member = want("a", group="g").replica

    assert restart(alone) is None
    assert restart(member) == Restart(base_s=GROUP_PAUSE, at_once=False)
    patient = Restart(base_s=60.0, crash_loop_after=2, at_once=False)
    assert restart(msgspec.structs.replace(member, restart=patient)) == patient
    hasty = Restart(base_s=0.1)
    assert restart(msgspec.structs.replace(member, restart=hasty)) == restart(member)


# Whatever is wanted and whatever runs -----------------------------------------------

ids = st.sampled_from("abcd")
replicas = st.builds(
    want,
    ids,
    st.integers(1, 3),
    start_first=st.booleans(),
    group=st.sampled_from(["", "", "g"]),
)
snapshots = st.lists(replicas, max_size=4, unique_by=lambda one: one.replica.id)
states: st.SearchStrategy[State] = st.sampled_from(
    ["pending", "starting", "ready", "busy", "unhealthy", "backoff", "stopping"]
)


@st.composite
def nodes(draw: st.DrawFn) -> list[Running]:
    """What a node may hold: an id once, or twice in the midst of a replacement."""
    held: list[Running] = []
    for one in draw(snapshots):
        held.append(
            msgspec.structs.replace(
                runs(one, draw(states)), is_adopted=draw(st.booleans())
            )
        )
        if draw(st.booleans()):
            newer = want(one.replica.id, one.replica.generation + 1, start_first=True)
            held.append(runs(newer, draw(states), beside(newer)))
    return held


def performed(actions: tuple[Action, ...], held: list[Running]) -> list[Running]:
    """As a supervisor does it; a start on a name that is held is a bug of the plan."""
    now = {one.name: one for one in held if not one.is_gone}
    for action in actions:
        match action:
            case Start(one, name):
                assert name not in now, f"{name} is started on top of {now[name]}"
                now[name] = runs(one, "starting", name)
            case Stop(name):
                now[name] = msgspec.structs.replace(now[name], state="stopping")
            case Keep(one, name):
                assert now[name].digest == one.digest
    return list(now.values())


def later(held: list[Running]) -> list[Running]:
    """Time passes: what starts is ready, what stops is gone."""
    return [
        msgspec.structs.replace(
            one, state="stopped" if one.state == "stopping" else "ready"
        )
        for one in held
    ]


@given(snapshots, nodes())
@settings(deadline=None)
def test_performing_plans_reaches_what_is_wanted_and_then_only_keeps(
    desired: list[Wanted], held: list[Running]
) -> None:
    for _ in range(8):
        held = later(performed(plan(tuple(desired), tuple(held), draining=False), held))

    running = {one.id: one.digest for one in held if one.state in SERVING}
    assert running == {one.replica.id: one.digest for one in desired}
    assert all(
        isinstance(action, Keep)
        for action in plan(tuple(desired), tuple(held), draining=False)
    )


@given(snapshots, nodes(), st.booleans())
@settings(deadline=None)
def test_only_what_is_not_wanted_or_wanted_otherwise_is_stopped(
    desired: list[Wanted], held: list[Running], draining: bool
) -> None:
    """docs/protocol.md 3.6: nothing else on the link ends an engine."""
    as_wanted = {one.digest for one in desired if one.replica.group is None}
    by_name = {one.name: one for one in held}

    for action in plan(tuple(desired), tuple(held), draining=draining):
        if isinstance(action, Stop):
            assert by_name[action.name].digest not in as_wanted
            assert not by_name[action.name].is_leaving


@given(snapshots, nodes())
@settings(deadline=None)
def test_a_draining_node_comes_to_rest_without_a_start(
    desired: list[Wanted], held: list[Running]
) -> None:
    for _ in range(4):
        actions = plan(tuple(desired), tuple(held), draining=True)
        assert not any(isinstance(action, Start) for action in actions)
        held = later(performed(actions, held))

    rest = plan(tuple(desired), tuple(held), draining=True)
    assert all(isinstance(action, Keep) for action in rest)


@given(snapshots, nodes())
@settings(deadline=None)
def test_a_group_is_never_half_started(
    desired: list[Wanted], held: list[Running]
) -> None:
    """T90."""
    members = {one.replica.id for one in desired if one.replica.group is not None}

    actions = plan(tuple(desired), tuple(held), draining=False)

    started = {action.name for action in actions if isinstance(action, Start)}
    kept = {action.name for action in actions if isinstance(action, Keep)}
    assert not started & members or members <= started | kept
