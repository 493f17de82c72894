"""What readings of an engine amount to."""

import os
import signal
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.supervisor.health import (
    LOADED_STEP,
    START_CAP,
    Judge,
    Reading,
    Verdict,
    client,
    total,
)
from llmgw.supervisor.launch import Health, Probe
from tests.supervisor.conftest import Node, node, order

SILENT = Reading(answered=False, why="no")
SOUND = Reading(answered=True, moved=1.0, requests=0.0)


def judge(**changes: float) -> Judge:
    return Judge(0.0, start_timeout=10.0, stuck_after=30.0, **changes)  # pyright: ignore[reportArgumentType]


def loading(megabytes: int) -> Reading:
    return Reading(answered=False, why="loading", effort=(megabytes << 20, 0, 0))


def ready() -> Judge:
    judged = judge()
    assert judged.see(SOUND, 0.0) == Verdict("ready")
    return judged


def test_the_start_deadline_moves_while_something_is_loaded() -> None:
    judged = judge()

    for second in range(50):
        assert not judged.see(loading(second), float(second)).given_up
    stalled = judged.see(loading(49), 58.0)
    late = judged.see(loading(49), 59.0)

    assert not stalled.given_up
    assert late.given_up
    assert "nothing loaded for 10 s" in (late.reason or "")


@pytest.mark.parametrize("which", [0, 1, 2], ids=["read", "resident", "logged"])
def test_any_of_three_signs_of_loading_moves_the_deadline(which: int) -> None:
    """Bytes read, memory held, and the log, each alone."""
    judged = judge()

    def at(second: int) -> Reading:
        effort = [3, 5, 7]
        effort[which] += second * (LOADED_STEP if which == 0 else 1)
        return Reading(answered=False, effort=tuple(effort))

    given_up = [judged.see(at(s), float(s)).given_up for s in range(50)]

    assert not any(given_up)
    assert judged.see(at(49), 59.0).given_up


def test_loading_for_ever_ends_at_the_cap() -> None:
    judged = judge()

    verdicts = [judged.see(loading(s), float(s)) for s in range(10 * START_CAP + 1)]

    assert [v.given_up for v in verdicts] == [False] * 60 + [True]


def test_a_line_a_second_is_not_loading() -> None:
    """Bytes read count from a megabyte on: a driver that polls reads too."""
    judged = judge()

    for second in range(10):
        judged.see(Reading(answered=False, effort=(second * 100, 5, 7)), float(second))

    assert judged.see(Reading(answered=False, effort=(1000, 5, 7)), 10.0).given_up


def test_silent_with_tokens_growing_is_busy_and_never_given_up() -> None:
    """T91: a long prompt makes the health check slow, not the engine dead."""
    judged = ready()

    verdicts = [
        judged.see(Reading(answered=False, why="slow", moved=2.0 + s, requests=1.0), s)
        for s in map(float, range(1, 1000, 2))
    ]

    assert {(v.state, v.given_up) for v in verdicts} == {("busy", False)}


def test_silence_is_unhealthy_at_the_third_time_and_stuck_after_a_while() -> None:
    judged = ready()

    states = [judged.see(SILENT, float(s)).state for s in (1, 2, 3)]
    verdict = judged.see(SILENT, 30.0)

    assert states == ["ready", "ready", "unhealthy"]
    assert verdict.given_up
    assert "stuck" in (verdict.reason or "")


def test_answering_with_requests_and_no_progress_is_stuck() -> None:
    judged = ready()

    for second in range(1, 30):
        reading = Reading(answered=True, moved=5.0, requests=2.0)
        assert judged.see(reading, float(second)).state == "ready"
    # The counter went from 1 to 5 at the first second: that was the last of it.
    verdict = judged.see(Reading(answered=True, moved=5.0, requests=2.0), 31.0)

    assert verdict.given_up
    assert "2 requests" in (verdict.reason or "")


def test_answering_without_requests_is_never_stuck() -> None:
    judged = ready()

    for second in range(1, 10_000, 100):
        assert judged.see(SOUND, float(second)) == Verdict("ready")


def test_an_adopted_one_that_served_has_its_time_and_is_unhealthy_then() -> None:
    judged = judge(was_ready=True, ready_within=5.0)

    assert judged.see(SILENT, 4.9).state == "starting"
    assert judged.see(SILENT, 5.0).state == "unhealthy"
    assert judged.see(SOUND, 6.0).state == "ready"


@given(
    st.lists(
        st.builds(
            Reading,
            answered=st.booleans(),
            moved=st.none() | st.floats(0, 100),
            requests=st.none() | st.floats(0, 10),
            effort=st.just(()) | st.tuples(st.integers(0, 1 << 40)),
        ),
        max_size=60,
    )
)
def test_nothing_is_given_up_before_its_time(readings: list[Reading]) -> None:
    judged = judge()

    for second, reading in enumerate(readings):
        verdict = judged.see(reading, second / 10)
        assert not verdict.given_up


def test_metrics_are_summed_over_their_labels() -> None:
    """Prometheus text, with and without labels, and with lines that are no sample."""
    text = (
        "# HELP vllm:generation_tokens_total n\n"
        'vllm:generation_tokens_total{model="a b",engine="0"} 3.5\n'
        'vllm:generation_tokens_total{model="c",engine="1"} 4 1700000000\n'
        "llamacpp:tokens_predicted_total 12\n"
        "vllm:generation_tokens_total_created 9\n"
        "nonsense\n"
    )

    assert total(text, ("vllm:generation_tokens_total",)) == 7.5
    assert total(text, ("llamacpp:tokens_predicted_total",)) == 12.0
    assert total(text, ("absent",)) is None


# One token, where that is wanted ----------------------------------------------------

STILL = Reading(answered=True, moved=5.0, requests=2.0)
TELLS_NOTHING = Reading(answered=True)


def probing(reading: Reading) -> Judge:
    """It answers and shows no work from second 1 on."""
    judged = Judge(0.0, start_timeout=10.0, stuck_after=30.0, has_probe=True)
    judged.see(SOUND, 0.0)
    judged.see(reading, 1.0)
    return judged


def test_before_it_is_stuck_it_is_asked_for_a_token() -> None:
    judged = probing(STILL)

    assert not judged.wants_probe(30.9)
    assert judged.wants_probe(31.0)
    assert not judged.see(STILL, 40.0).given_up
    judged.probed(gave=False, begun=31.0, now=61.0)
    verdict = judged.see(STILL, 62.0)
    assert verdict.given_up
    assert "one token did not come in 30 s" in (verdict.reason or "")


def test_a_token_that_comes_is_a_sign_of_work() -> None:
    judged = probing(STILL)

    judged.probed(gave=True, begun=31.0, now=32.0)

    assert judged.see(STILL, 61.0) == Verdict("ready")
    assert judged.wants_probe(62.0)


def test_a_token_late_because_of_other_work_counts_against_nobody() -> None:
    """T91: a queue before it is no fault of the engine."""
    judged = probing(STILL)

    judged.see(Reading(answered=True, moved=6.0, requests=2.0), 50.0)
    judged.probed(gave=False, begun=31.0, now=61.0)

    assert not judged.see(msgspec.structs.replace(STILL, moved=6.0), 81.0).given_up
    assert judged.wants_probe(81.0)


def test_one_that_has_no_counters_is_stuck_only_if_it_owes_a_token() -> None:
    judged = probing(TELLS_NOTHING)

    assert judged.see(TELLS_NOTHING, 1000.0).given_up is False
    judged.probed(gave=False, begun=1000.0, now=1030.0)
    assert judged.see(TELLS_NOTHING, 1031.0).given_up


def test_one_that_may_not_be_asked_is_judged_as_without() -> None:
    """401, 404: that it does not give a token then says nothing."""
    judged = probing(TELLS_NOTHING)

    judged.probed(gave=None, begun=40.0, now=40.1)

    assert not judged.see(TELLS_NOTHING, 10_000.0).given_up
    assert not judged.wants_probe(10_100.0)


def test_a_silent_one_is_not_asked_for_tokens() -> None:
    judged = probing(STILL)
    judged.see(SILENT, 32.0)

    assert not judged.wants_probe(33.0)


# With an engine that really misbehaves ---------------------------------------------


async def turn(here: Node, name: str, value: float) -> None:
    port = here.status().ports["api"]
    async with client(5.0) as http:
        answer = await http.post(f"http://127.0.0.1:{port}/knob?{name}={value}")
    assert answer.status_code == 200


async def test_a_busy_engine_is_not_restarted(state_dir: Path) -> None:
    """T91: 503 from the health route while tokens grow."""
    async with node(state_dir) as here:
        here.supervisor.want(order())
        before = await here.state("ready")
        await turn(here, "rate", 1000)
        await turn(here, "health", 503)
        busy = await here.state("busy")
        await turn(here, "health", 200)
        after = await here.state("ready")

        assert before.pid == busy.pid == after.pid


async def test_an_engine_that_hangs_is_unhealthy_then_started_again(
    state_dir: Path,
) -> None:
    async with node(
        state_dir,
        health_timeout=0.05,
        stuck_after=1.5,
        start_timeout=60.0,
        stop_grace=0.1,
    ) as here:
        here.supervisor.want(order())
        first = await here.state("ready")
        assert first.pid
        os.kill(first.pid, signal.SIGSTOP)
        await here.state("unhealthy")
        again = await here.until(lambda s: s.state == "ready" and s.pid != first.pid)

        assert again.restarts == 1


async def moved(http: httpx.AsyncClient, port: int) -> float | None:
    """Each token that it was asked for counts one."""
    text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    return total(text, ("llamacpp:tokens_predicted_total",))


async def test_an_engine_that_gives_no_token_is_started_again(state_dir: Path) -> None:
    """It answers 200 all the while, and says that two requests run."""
    probe = Probe(path="/completion", body='{"n_predict":1}')
    asked = Health(
        metrics_path="/metrics",
        progress_metrics=("llamacpp:tokens_predicted_total",),
        requests_metric="llamacpp:requests_processing",
        probe=probe,
    )
    async with node(
        state_dir, probe_stuck=True, stuck_after=1.0, stop_grace=0.1
    ) as here:
        here.supervisor.want(order(health=asked))
        first = await here.state("ready")
        await turn(here, "requests", 2)
        await turn(here, "mute", 1)
        again = await here.until(lambda s: s.pid not in (None, first.pid))

        assert again.restarts == 1
        await here.supervisor.stop_all()


async def test_an_engine_that_gives_its_token_is_left_alone(state_dir: Path) -> None:
    """Its counters stand still, as those of one long request do."""
    probe = Probe(path="/completion", body='{"n_predict":1}')
    asked = Health(
        metrics_path="/metrics",
        progress_metrics=("llamacpp:tokens_predicted_total",),
        requests_metric="llamacpp:requests_processing",
        probe=probe,
    )
    async with node(state_dir, probe_stuck=True, stuck_after=1.0) as here:
        here.supervisor.want(order(health=asked))
        first = await here.state("ready")
        await turn(here, "requests", 2)
        port = first.ports["api"]
        async with client(5.0) as http:
            with anyio.fail_after(10):
                while (await moved(http, port) or 0) < 2:
                    await anyio.sleep(0.05)

        assert here.status().pid == first.pid
        assert here.status().state == "ready"
        await here.supervisor.stop_all()


async def test_a_start_that_leads_nowhere_is_tried_again_with_the_reason_kept(
    state_dir: Path,
) -> None:
    """T56: a limit that is hit is a reason to wait, not to give up for good."""
    async with node(state_dir, start_timeout=0.5, restart_base=0.5) as here:
        here.supervisor.want(order("fake-0", "--ready-after", "60"))
        down = await here.state("backoff")
        again = await here.until(lambda s: s.state == "starting" and s.restarts == 1)

        assert "nothing loaded" in (down.reason or "")
        assert "503" in (down.reason or "")
        assert again.restarts == 1


async def test_a_start_that_loads_may_take_longer_than_the_limit(
    state_dir: Path,
) -> None:
    async with node(state_dir, start_timeout=1.2) as here:
        here.supervisor.want(order("fake-0", "--ready-after", "2.2", "--load"))
        ready = await here.state("ready")

        assert ready.restarts == 0


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_health_checks_take_no_proxy(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """T34: a dead proxy in the environment does not make an engine unhealthy."""
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with node(state_dir) as here:
        here.supervisor.want(order())
        await here.state("ready", within=3)
        await here.supervisor.stop_all()
