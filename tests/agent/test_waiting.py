"""What a person is told of that which is wanted and does not start."""

import pytest

from llmgw.agent.waiting import waiting
from llmgw.reconcile import Action, Keep, Start, Stop
from llmgw.wire import Replica, ReplicaStatus, State, Wanted

A = Wanted(Replica(id="a", generation=2, engine="command"), "new")


def status(
    state: State, digest: str = "new", id: str = "a", reason: str | None = None
) -> ReplicaStatus:
    return ReplicaStatus(
        id=id, generation=1, state=state, since_s=0.0, spec_digest=digest, reason=reason
    )


@pytest.mark.parametrize(
    ("here", "held", "draining", "said"),
    [
        ([], {"new"}, False, "hold a: is wanted, and stopped by a person here"),
        ([status("stopping")], {"new"}, True, "hold a: is wanted, and stopped by a p"),
        ([], {"old"}, True, "hold a: is wanted and this node drains"),
        ([status("stopped")], set[str](), True, "hold a: is wanted and this node dra"),
        (
            [status("ready", "old")],
            set[str](),
            True,
            "hold a: is wanted otherwise than",
        ),
        (
            [status("failed", reason="no build")],
            set[str](),
            True,
            "wait a: failed: no b",
        ),
        ([status("failed", "old")], set[str](), False, "wait a: failed"),
        ([status("crash_loop")], set[str](), False, "wait a: crash_loop"),
        ([status("backoff")], set[str](), False, "wait a: backoff"),
        ([status("stopping", "old")], set[str](), False, "wait a: stopping"),
        (
            [status("stopping", "old"), status("failed", "older", "a.0123")],
            set[str](),
            False,
            "wait a: failed",
        ),
        ([], set[str](), False, "wait a: waits for GPUs"),
    ],
)
def test_what_is_wanted_and_does_not_start_is_named_with_the_reason(
    here: list[ReplicaStatus], held: set[str], draining: bool, said: str
) -> None:
    """`nothing is wanted here`, it said."""
    [one] = waiting((A,), tuple(here), (), held=held, draining=draining)

    assert f"{one.action} {one.name}: {one.why}".startswith(said)


@pytest.mark.parametrize("action", [Start(A, "a"), Keep(A, "a"), Start(A, "a.0123")])
def test_what_is_cared_for_does_not_wait(action: Action) -> None:
    here = (status("ready"),)

    assert list(waiting((A,), here, (action,), held=(), draining=False)) == []


def test_what_is_stopped_for_its_successor_waits_and_that_which_is_stopped_not() -> (
    None
):
    here = (status("ready", "old"), status("ready", "b", "b"))
    actions = (Stop("a"), Stop("b"))

    [one] = waiting((A,), here, actions, held=(), draining=False)

    assert (one.name, one.fix) == ("a", "it starts once that has ended")


def test_what_runs_and_was_not_wanted_last_waits_for_a_word() -> None:
    here = (status("ready", id="b"), status("stopping", id="c"))

    [one] = waiting((), here, (), held=(), draining=False)

    assert one.name == "b"
    assert one.why == "runs, and was not wanted when a control plane was last heard"


def test_each_says_how_it_ends() -> None:
    states: tuple[State, ...] = ("failed", "crash_loop", "backoff", "stopping")
    fixes = {
        one.fix
        for state in states
        for one in waiting((A,), (status(state),), (), held=(), draining=False)
    }
    [held] = waiting((A,), (), (), held={"new"}, draining=False)
    [drained] = waiting((A,), (), (), held=(), draining=True)

    assert len(fixes) == len(states)
    assert held.fix == "`llmgw engines start a` lets it run again"
    assert drained.fix == "`llmgw undrain` ends it"
