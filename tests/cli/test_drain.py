"""`llmgw drain` and `undrain` on the command line."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.door import Request
from llmgw.cli import parse
from tests.cli.at_a_door import at_a_door

DRAIN = {
    "by_person": True,
    "by_control": False,
    "stop_after_s": 5.0,
    "ends_in_s": 5.0,
}


async def said(path: Path, *argv: str, answer: Any) -> dict[str, Any]:
    """What the agent is asked, which answers *answer*."""
    asked: list[dict[str, Any]] = []

    async def answers(request: Request) -> AsyncIterator[Any]:
        asked.append(dict(request))
        yield answer

    await at_a_door(path, {argv[0]: answers}, argv)
    [request] = asked
    return request


async def test_what_was_understood_of_the_limit_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.sock"
    asked = await said(path, "drain", "--stop-after", "1m30s", answer=DRAIN)

    assert asked == {"op": "drain", "stop_after": 90.0}
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("draining: nothing new is started here; `llmgw undrain`")
    assert second == "what still runs in 5 s is stopped (--stop-after 5s)"


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("5", '"5" has no unit; write "5s"'),
        ("5x", '"5x" has the unknown unit "x"'),
        ("soon", '"soon" is not a duration such as "5s"'),
        ("-5s", "must be no less than zero, not -5s"),
    ],
)
def test_a_limit_is_written_as_in_the_file_or_told_how(
    limit: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`5` was an `invalid duration value`."""
    with pytest.raises(SystemExit):
        parse(["drain", f"--stop-after={limit}"])

    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "held", "words"),
    [
        (None, ["a"], ["was not draining: nothing has changed"]),
        (DRAIN, [], ["has ended: what is wanted here starts again"]),
        (
            DRAIN | {"by_control": True},
            ["a"],
            ["has ended", "the control plane still wants", "`llmgw engines start a`"],
        ),
    ],
    ids=["not", "person", "both"],
)
async def test_undrain_says_what_has_changed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: dict[str, Any] | None,
    held: list[str],
    words: list[str],
) -> None:
    """It answered `not draining`, which is no answer to whether it was."""
    answer = {"drain": before, "held": held}
    await said(tmp_path / "agent.sock", "undrain", answer=answer)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))
