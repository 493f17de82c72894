"""What a person reads of this node."""

from typing import Any

import pytest

from llmgw.cli.status import share


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
