"""What a person reads of this node."""

from typing import Any

import pytest

from llmgw.cli.status import drained, share


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
