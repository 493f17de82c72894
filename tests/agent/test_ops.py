"""What a control plane asks of a node may be anything; the agent lives through it."""

from typing import Any, cast

import pytest

from llmgw.agent.ops import Ops
from llmgw.agent.run import Agent
from llmgw.errors import LlmgwError
from llmgw.wire import Ask


def nested(levels: int) -> list[Any]:
    within: list[Any] = []
    for _ in range(levels):
        within = [within]
    return within


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "has to be named"),
        ({"replica": None}, "has to be named"),
        ({"replica": 7}, "has to be named"),
        ({"replica": nested(900)}, "has to be named"),
        ({"replica": "../ledger"}, r"'\.\./ledger' is not the name"),
        ({"replica": "A"}, "'A' is not the name"),
        ({"replica": "a.b/c"}, "'a.b/c' is not the name"),
        ({"replica": "x" * 4_000_000}, r"^'x{80}' is not the name"),
    ],
    ids=["none", "null", "number", "deep", "path", "case", "beside", "long"],
)
async def test_a_log_of_what_is_no_replica_is_refused(
    args: dict[str, Any], says: str
) -> None:
    """To print what was sent is to recurse into it: that ended the agent."""
    agent = cast("Agent", None)  # refused before the agent is asked for anything
    answer = Ops(agent).answers()["log_tail"]

    with pytest.raises(LlmgwError, match=says):
        await answer(Ask(id="1", kind="log_tail", args=args))
