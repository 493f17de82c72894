"""What a person reads of this node."""

from typing import Any

import pytest

from llmgw.cli.status import drained, lines, share


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        ({"done": 1, "total": 4}, " 25 %"),
        ({"done": 3 * 1024**2, "total": None}, ", 3.0 MiB"),
        ({"done": 0, "total": None}, ""),
        ({"done": 0, "total": 4}, " 0 %"),
    ],
)
def test_how_far_it_is_has_a_unit_and_nothing_is_not_told(
    progress: dict[str, Any], said: str
) -> None:
    """It was `asked again in 12 s (Connection refused) 0`."""
    assert share(progress) == said


@pytest.mark.parametrize(
    ("limit", "left", "said"),
    [
        (None, None, "what runs goes on, and is started again if it falls"),
        (600.0, 599.9, "what still runs in 10 min is stopped (--stop-after 10m)"),
        (5400.0, 61.0, "what still runs in 1 min is stopped (--stop-after 1h30m)"),
        (0.5, 0.4, "what still runs in 1 s is stopped (--stop-after 500ms)"),
        (5.0, 0.0, "its time is up: what still ran is stopped"),
    ],
)
def test_of_a_drain_it_is_told_when_it_ends(
    limit: float | None, left: float | None, said: str
) -> None:
    drain = {"by_person": True, "by_control": True}

    lines = drained({**drain, "stop_after_s": limit, "ends_in_s": left})

    assert lines == ["nothing new is started here; `llmgw undrain` ends it", said]


STATUS: dict[str, Any] = {
    "node_id": "n1",
    "version": "1",
    "engines_held": "process",
    "link": {"state": "connected", "since": 1.0},
    "drain": None,
    "fetching": {},
    "replicas": [],
    "held": [],
    "waits": [],
    "problems": [],
}


def test_what_a_drain_holds_back_is_there() -> None:
    """Only `llmgw plan` said of what a drain holds that it is wanted at all."""
    running = {"id": "b", "state": "backoff"}
    waits = [
        {"action": "hold", "name": "a", "why": "is wanted and this node drains"},
        {"action": "hold", "name": "p", "why": "is wanted, and stopped by a person"},
        {"action": "wait", "name": "b", "why": "backoff", "fix": "it is tried again"},
        {"action": "wait", "name": "c", "why": "waits for GPUs", "fix": "some day"},
    ]
    status = STATUS | {"replicas": [running], "waits": waits, "held": ["p"]}

    told = [line for line in lines(status) if line.startswith(("held", "waits", "   "))]

    assert told == [
        "held      p is wanted, and stopped by a person here",
        "          `llmgw engines start p` lets it run again",
        "held      a: is wanted and this node drains",
        "waits     c: waits for GPUs",
        "          some day",
    ]


@pytest.mark.parametrize(
    ("replica", "said"),
    [
        ({}, "a ready pid 7"),
        ({"restarts": 1}, "a ready pid 7 restarted 1 time"),
        (
            {"restarts": 3, "exit": {"signal": 9}},
            "a ready pid 7 restarted 3 times (the last killed by SIGKILL)",
        ),
        (
            {"restarts": 3, "exit": {"code": 1}, "reason": "exited with code 1: no"},
            "a ready pid 7 restarted 3 times: exited with code 1: no",
        ),
    ],
)
def test_how_often_it_fell_and_why(replica: dict[str, Any], said: str) -> None:
    """`--json` had it, and a person took an engine that falls each hour for well."""
    one = {"id": "a", "state": "ready", "pid": 7, **replica}

    assert f"replica   {said}" in lines(STATUS | {"replicas": [one]})
