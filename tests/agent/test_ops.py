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


@pytest.mark.parametrize(
    "stop_after", [10**400, 1e308, -1, True, "x", [1], nested(900)]
)
async def test_a_drain_with_no_such_end_is_refused(stop_after: Any) -> None:
    """Added to the time of day it ended the agent."""
    agent = cast("Agent", None)
    answer = Ops(agent).table()["drain"]

    with pytest.raises(LlmgwError, match="stop_after is no number of seconds"):
        await anext(answer({"op": "drain", "stop_after": stop_after}))


@pytest.mark.parametrize("port", [None, True, "x", 1.5])
async def test_a_probe_without_a_port_is_refused(port: Any) -> None:
    agent = cast("Agent", None)
    answer = Ops(agent).table()["probe"]

    with pytest.raises(LlmgwError, match="needs an address and a port"):
        await anext(answer({"op": "probe", "address": "a", "port": port}))
