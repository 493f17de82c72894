"""What the link decides, for all there may be to decide on."""

import random

from hypothesis import given
from hypothesis import strategies as st

from llmgw.backoff import delays, jittered
from llmgw.session import rules
from llmgw.wire import MAX_LINE, Progress, ReplicaStatus

seconds = st.floats(min_value=0.05, max_value=60.0)
said = st.none() | st.floats(allow_nan=False, min_value=-1e9, max_value=1e9)
servers = st.lists(
    st.sampled_from([f"http://cp{n}" for n in range(6)]), unique=True, max_size=6
)
states = st.sampled_from(["pending", "starting", "ready", "failed"])
statuses = st.lists(
    st.builds(
        ReplicaStatus,
        id=st.sampled_from("abcd"),
        generation=st.integers(1, 2),
        state=states,
        since_s=st.floats(0, 100),
        progress=st.none()
        | st.builds(Progress, what=st.just("x"), done=st.integers(0, 9)),
    ),
    unique_by=lambda status: status.id,
).map(tuple)


@given(said=said, written=seconds)
def test_the_pace_stays_within_its_limits(said: float | None, written: float) -> None:
    beat = rules.heartbeat(said, written)

    assert beat == written if said is None else 1.0 <= beat <= 60.0


@given(said=said, beat=seconds)
def test_two_lost_beats_and_a_new_server_fit_into_the_lease(
    said: float | None, beat: float
) -> None:
    """3.5: a beat, its repetition, and as long again before the lease is over."""
    lease = rules.lease(said, beat)
    patience = rules.patience(lease, beat)

    assert lease >= 3 * beat
    assert patience > 0
    assert beat + 4 * patience <= lease + 1e-6


@given(beat=seconds, delays=st.lists(st.floats(0, 2), min_size=1, max_size=30))
def test_slow_answers_do_not_add_up(beat: float, delays: list[float]) -> None:
    """T17: however long each answer takes, the beats stay on their grid."""
    now = deadline = 0.0
    for delay in delays:
        now = max(now, deadline) + delay * beat
        after = rules.next_beat(deadline, beat, now)

        assert after >= now
        assert after in (deadline + beat, now)
        deadline = after

    assert deadline <= max(len(delays) * beat, sum(delays) * beat + beat * len(delays))


@given(epoch=st.integers(0), seen=st.integers(0))
def test_only_a_lower_epoch_may_not_lead(epoch: int, seen: int) -> None:
    assert rules.may_lead(epoch, seen) is not (epoch < seen)


@given(servers=servers, hint=st.none() | st.sampled_from(["http://CP3/", "http://x"]))
def test_a_round_offers_each_server_once_and_a_hint_first(
    servers: list[str], hint: str | None
) -> None:
    offered = list(rules.Round(servers, hint))

    assert sorted(offered) == sorted(servers)
    if hint == "http://CP3/" and "http://cp3" in servers:
        assert offered[0] == "http://cp3"
        offered.remove("http://cp3")
        servers.remove("http://cp3")
    assert offered == servers


@given(servers=servers, taken=st.integers(0, 6), data=st.data())
def test_what_is_put_back_comes_before_the_rest(
    servers: list[str], taken: int, data: st.DataObject
) -> None:
    pass_over = rules.Round(servers)
    first = [server for server, _ in zip(pass_over, range(taken), strict=False)]
    back = [one for one in first if data.draw(st.booleans())]
    rest = [one for one in servers if one not in first]

    pass_over.put_back(back)

    left = list(pass_over)
    assert left[: len(back)] == back
    # `zip` takes one more before it sees that it is enough.
    assert set(rest) - set(left[len(back) :]) <= set(rest[:1])


@given(configured=servers, learned=servers)
def test_the_configured_come_first_and_are_never_lost(
    configured: list[str], learned: list[str]
) -> None:
    """3.8."""
    order = rules.order(configured, learned)

    assert list(order[: len(configured)]) == configured
    assert set(order) == {*configured, *learned}
    assert len(order) == len(set(order))


@given(
    named=st.lists(st.text(max_size=12) | st.sampled_from(["https://a", "http://a"]))
)
def test_what_is_learned_is_an_address_under_tls(named: list[str]) -> None:
    """3.8: with TLS on, only https; and nothing that is no address."""
    assert set(rules.learnable(named, ("https://b",), tls=True)) <= {
        one for one in named if one.startswith("https://")
    }
    assert "https://B:443/" not in rules.learnable(
        ["https://B:443/"], ("https://b",), tls=True
    )


@given(now=statuses, heard=statuses)
def test_what_is_told_is_what_was_not_heard(
    now: tuple[ReplicaStatus, ...], heard: tuple[ReplicaStatus, ...]
) -> None:
    known = {status.id: status for status in heard}
    told = rules.changed(now, known)

    after = {**known, **{status.id: status for status in told}}
    for status in now:
        assert rules.timeless(after[status.id]) == rules.timeless(status)
    assert rules.changed(now, {status.id: status for status in now}) == ()
    # What is urgent is told, and progress alone never is urgent.
    if rules.urgent(now, known):
        assert told


@given(said=st.none() | st.integers(-(10**12), 10**12))
def test_no_control_plane_makes_a_line_of_any_length(said: int | None) -> None:
    assert 0 < rules.max_line(said) <= 16 * MAX_LINE


dice = st.floats(min_value=0, max_value=1, exclude_max=True)
answered = st.tuples(st.booleans(), st.booleans(), st.floats(-60.0, 300.0), dice)


@given(base=seconds, longest=seconds, rounds=st.lists(answered, max_size=40))
def test_a_wait_is_as_long_as_it_must_be(
    base: float, longest: float, rounds: list[tuple[bool, bool, float, float]]
) -> None:
    """3.2: from half the base to the longest, not before all of them may be asked."""
    waits = rules.Waits(base, longest)
    low = min(base, longest)
    for stubborn, standby, busy, drawn in rounds:
        wait = waits.after(
            stubborn=stubborn, standby=standby, not_before=busy, dice=drawn
        )

        assert max(low / 2, busy) <= wait <= max(longest, 1.5 * low, busy + low / 2)
        if stubborn:
            assert wait >= longest / 2


@given(base=seconds, longest=seconds, rolls=st.lists(dice, min_size=1, max_size=40))
def test_the_waits_double_while_nobody_answers(
    base: float, longest: float, rolls: list[float]
) -> None:
    """3.2."""
    waits = rules.Waits(base, longest)
    for drawn, whole in zip(rolls, delays(base, longest), strict=False):
        wait = waits.after(stubborn=False, standby=False, not_before=0.0, dice=drawn)

        assert wait == jittered(whole, drawn)


@given(drawn=dice, other=dice)
def test_servers_that_ask_to_be_left_alone_are_not_all_asked_in_one_instant(
    drawn: float, other: float
) -> None:
    """429 and 503 with a time: the nodes that heard it come back spread out."""
    one, two = (
        rules.Waits(1.0, 30.0).after(
            stubborn=False, standby=False, not_before=20.0, dice=each
        )
        for each in (drawn, other)
    )

    assert 20.0 <= one <= 20.5
    assert abs((one - two) - (drawn - other) / 2) < 1e-9


@given(
    election=st.floats(0.0, 30.0),
    dead=st.integers(0, 6),
    seed=st.integers(0, 2**32),
)
def test_a_crowd_finds_the_next_leader_soon_and_crowds_no_standby(
    election: float, dead: int, seed: int
) -> None:
    """3.2: however long the election lasts and whatever was waited for before it, each
    node is back two seconds after it, and none asks a standby twice in one second."""
    rolls = random.Random(seed)
    for _ in range(20):
        waits = rules.Waits(1.0, 30.0)
        for _ in range(dead):
            waits.after(
                stubborn=False, standby=False, not_before=0.0, dice=rolls.random()
            )
        asked = 0.0
        while asked < election:
            wait = waits.after(
                stubborn=False, standby=True, not_before=0.0, dice=rolls.random()
            )
            assert wait >= 1.0
            asked += wait

        assert asked <= election + 1.5


@given(rolls=st.lists(dice, min_size=200, max_size=200))
def test_standbys_without_a_leader_are_asked_ever_less(rolls: list[float]) -> None:
    """3.2: what goes on for minutes is no election."""
    waits = rules.Waits(1.0, 30.0)
    all_waits = [
        waits.after(stubborn=False, standby=True, not_before=0.0, dice=drawn)
        for drawn in rolls
    ]

    short = [wait for wait in all_waits if wait <= 1.5]
    assert sum(short) <= rules.ELECTION + 5.0
    assert all(wait >= 15.0 for wait in all_waits[-100:])
