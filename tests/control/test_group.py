"""What becomes of a group, case by case."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmgw.control.group import Here, Member, free_port, step
from llmgw.control.state import Desired, Part, renewed
from llmgw.wire import ReplicaStatus

BUILDS = ({"name": "b", "engine": "vllm", "digest": "sha256:b"},)
HERE = Here(is_live=True, address="10.0.0.1", builds=BUILDS)


def member(rank: int, state: str | None = None, **more: Any) -> Member:
    status = state and ReplicaStatus(
        id=f"r{rank}",
        generation=1,
        state=state,  # pyright: ignore[reportArgumentType] -- a test's choice
        since_s=0,
    )
    said: dict[str, Any] = {
        "node_id": f"n{rank}",
        "id": f"r{rank}",
        "engine": "vllm",
        "build": None,
        "generation": 1,
        "group": {"id": "g", "rank": rank, "size": 2},
        "part": Part(),
        "status": status or None,
        "here": HERE,
        **more,
    }
    return Member(**said)


def decided(*members: Member, must_wait: bool = False) -> str:
    found = step(members, must_wait=must_wait)
    return f"{found.state}: {found.reason}"


def test_members_that_are_no_whole_group_are_told_so() -> None:
    assert "ranks 0" in decided(member(0))
    assert "ranks 0, 0" in decided(member(0), member(0))
    other = {"id": "g", "rank": 1, "size": 3}
    assert "do not agree on its size" in decided(member(0), member(1, group=other))
    assert "different engines" in decided(member(0), member(1, engine="sglang"))


def test_a_build_that_nothing_proves_is_not_started_on() -> None:
    """T88."""
    for builds, says in (
        ((), "n1 has no build of vllm"),
        (({"name": "x", "engine": "vllm"},), "nothing proves what build n1 has"),
        (({"name": "x", "engine": "sglang", "digest": "d"},), "has no build of vllm"),
    ):
        here = msgspec.structs.replace(HERE, builds=builds)
        assert says in decided(member(0), member(1, here=here))
    named = member(1, build="c")
    assert "n1 has no build c" in decided(member(0), named)


def test_what_the_operator_wrote_is_kept() -> None:
    group = {"id": "g", "size": 2, "head": "10.9.9.9", "port": 7, "members": ["a:1"]}
    written = {**group, "build_digest": "sha256:mine"}
    both = [member(rank, group={**written, "rank": rank}) for rank in (0, 1)]

    parts = step(tuple(both), must_wait=False).parts

    assert parts == (Part(hold=None, generation=1), Part(hold=None, generation=1))


def test_a_death_of_a_short_while_ago_is_waited_out() -> None:
    held = decided(member(0, "stopped"), member(1, "stopped"), must_wait=True)

    assert held == "backoff: it is tried again after a while"


def test_what_is_said_of_an_older_generation_is_no_death() -> None:
    sent = Part(hold=None, generation=2)

    assert decided(
        member(0, "backoff", part=sent), member(1, "backoff", part=sent)
    ).startswith("starting")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [None, "starting", "ready", "backoff", "failed", "stopped", "stopping"]
            ),
            st.sampled_from([None, "waiting", "down"]),
            st.booleans(),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_none_is_sent_while_another_of_it_is_held_back(
    drawn: list[tuple[str | None, Any, bool]],
) -> None:
    """Performed again and again, it settles with all of it sent, or with those held
    back that are not themselves the reason.
    """
    members = tuple(
        member(
            rank,
            state,
            part=Part(hold=hold),
            here=msgspec.structs.replace(HERE, is_live=live),
        )
        for rank, (state, hold, live) in enumerate(drawn)
    )
    for _ in range(6):
        found = step(members, must_wait=False)
        members = tuple(
            msgspec.structs.replace(one, part=part)
            for one, part in zip(members, found.parts or [m.part for m in members])  # noqa: B905
        )
    holds = {one.part.hold for one in members}
    reasons = [one for one in members if one.now in ("failed", "stopped")]

    assert holds in ({None}, {"waiting"}, {"down"}) or all(
        one in reasons for one in members if one.part.hold is None
    )


def test_each_group_gets_ports_of_its_own() -> None:
    first = free_port(2, [])
    second = free_port(3, [range(first, first + 2)])

    assert (first, second) == (20998, 20995)


def test_a_member_that_is_written_otherwise_waits_and_the_same_one_does_not() -> None:
    group = {"id": "g", "rank": 0, "size": 2}
    replica = {"id": "r", "engine": "vllm", "group": group}
    first = renewed(None, [replica])
    assert first.snapshot(1).replicas == ()
    sent = msgspec.structs.replace(
        first, parts={"r": Part(hold=None, generation=4, filled={"port": 9})}
    )
    [raw] = sent.snapshot(1).replicas
    said = msgspec.json.decode(raw)
    assert (said["generation"], said["group"]["port"]) == (4, 9)

    assert renewed(sent, [replica]).parts == sent.parts
    other = renewed(sent, [{**replica, "context": 1}])

    assert other.parts["r"].hold == "waiting"
    assert other.parts["r"].generation == 4
    assert isinstance(other, Desired)
