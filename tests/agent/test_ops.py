"""What a control plane asks of a node may be anything; the agent lives through it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from llmgw.agent.ops import Ops
from llmgw.agent.person import Person
from llmgw.agent.run import Agent
from llmgw.config import keys
from llmgw.errors import LlmgwError
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import Ask, Replica, ReplicaStatus, State, Wanted


def nested(levels: int) -> list[Any]:
    within: list[Any] = []
    for _ in range(levels):
        within = [within]
    return within


def agent_of(
    state_dir: Path, *wanted: Wanted, supervisor: Supervisor | None = None
) -> Agent:
    """What of an agent a log is asked of. Nothing runs."""
    supervisor = supervisor or Supervisor(keys.Supervisor(), state_dir)
    person = Person(state_dir, supervisor, lambda: wanted, lambda: None)
    return cast("Agent", SimpleNamespace(supervisor=supervisor, person=person))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "has to be named"),
        ({"replica": None}, "has to be named"),
        ({"replica": 7}, "has to be named"),
        ({"replica": " "}, "has to be named"),
        ({"replica": nested(900)}, "has to be named"),
        ({"replica": "../ledger"}, r"'\.\./ledger' is not the name"),
        ({"replica": "A"}, "'A' is not the name"),
        ({"replica": "a.b/c"}, "'a.b/c' is not the name"),
        ({"replica": "x" * 4_000_000}, r"^'x{80}' is not the name"),
    ],
    ids=["none", "null", "number", "blank", "deep", "path", "case", "beside", "long"],
)
async def test_a_log_of_what_is_no_replica_is_refused(
    tmp_path: Path, args: dict[str, Any], says: str
) -> None:
    """To print what was sent is to recurse into it: that ended the agent."""
    answer = Ops(agent_of(tmp_path)).answers()["log_tail"]

    with pytest.raises(LlmgwError, match=says):
        await answer(Ask(id="1", kind="log_tail", args=args))


async def test_an_id_that_is_a_path_opens_no_file(tmp_path: Path) -> None:
    """A process may call itself what it likes; one that bears our tag is a status."""

    class Stray(Supervisor):
        def statuses(self) -> tuple[ReplicaStatus, ...]:
            return (
                ReplicaStatus(
                    id="../secret",
                    generation=0,
                    state="unhealthy",
                    since_s=0.0,
                    spec_digest="",
                ),
            )

    await anyio.Path(tmp_path / "secret.log").write_text("secret")
    agent = agent_of(tmp_path, supervisor=Stray(keys.Supervisor(), tmp_path))

    with pytest.raises(LlmgwError, match="is not the name"):
        await anext(Ops(agent).table()["logs"]({"replica": "../secret"}))


@pytest.mark.parametrize("follow", [False, True])
async def test_for_a_name_that_nothing_has_it_says_what_has_logs(
    tmp_path: Path, follow: bool
) -> None:
    """It printed nothing, as if all were well; to be followed it waited for ever."""
    (tmp_path / "logs").mkdir()
    for name in ("b.log", "a.log", "a.log.1"):
        (tmp_path / "logs" / name).touch()
    wanted = Wanted(Replica(id="c", generation=1, engine="command"), "d1")
    logs = Ops(agent_of(tmp_path, wanted)).table()["logs"]

    with pytest.raises(LlmgwError, match="'nope' is not the name") as caught:
        with anyio.fail_after(5):
            await anext(logs({"op": "logs", "replica": "nope", "follow": follow}))

    assert str(caught.value).startswith("'nope' is not the name")
    assert caught.value.fix == f"in {tmp_path}/logs are logs of a, b; not yet of c"


async def test_what_is_wanted_and_silent_yet_is_followed_from_its_first_line(
    tmp_path: Path,
) -> None:
    wanted = Wanted(Replica(id="c", generation=1, engine="command"), "d1")
    logs = Ops(agent_of(tmp_path, wanted)).table()["logs"]
    heard: list[str] = []

    async def follow() -> None:
        async for text in logs({"op": "logs", "replica": "c", "follow": True}):
            heard.append(text)
            return

    assert [text async for text in logs({"op": "logs", "replica": "c"})] == []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            folder = anyio.Path(tmp_path / "logs")
            await folder.mkdir()
            await (folder / "c.log").write_text("loading\n")

    assert heard == ["loading\n"]


@pytest.mark.parametrize(
    ("state", "pid", "is_ending"),
    [("ready", 7, True), ("backoff", None, False), ("stopped", 7, False)],
)
async def test_a_replica_without_a_process_does_not_have_to_end(
    tmp_path: Path, state: State, pid: int | None, is_ending: bool
) -> None:
    class One(Supervisor):
        def statuses(self) -> tuple[ReplicaStatus, ...]:
            one = ReplicaStatus(id="a", generation=1, state=state, since_s=0.0, pid=pid)
            return (one,)

    agent = agent_of(tmp_path, supervisor=One(keys.Supervisor(), tmp_path))
    answer = Ops(agent).table()["stop"]

    assert await anext(answer({"replica": "a"})) == {"is_ending": is_ending}


@pytest.mark.parametrize(
    "stop_after", [10**400, 1e308, -1, True, "x", [1], nested(900)]
)
async def test_a_drain_with_no_such_end_is_refused(stop_after: Any) -> None:
    """Added to the time of day it ended the agent."""
    agent = cast("Agent", None)
    answer = Ops(agent).table()["drain"]

    with pytest.raises(LlmgwError, match="stop_after is no number of seconds"):
        await anext(answer({"op": "drain", "stop_after": stop_after}))


async def test_a_plan_before_anything_was_wanted_is_not_an_empty_one() -> None:
    agent = cast("Agent", SimpleNamespace(desired=None))
    answer = Ops(agent).table()["plan"]

    with pytest.raises(
        LlmgwError, match="no control plane has said yet what is wanted"
    ):
        await anext(answer({"op": "plan"}))


@pytest.mark.parametrize("port", [None, True, "x", 1.5])
async def test_a_probe_without_a_port_is_refused(port: Any) -> None:
    agent = cast("Agent", None)
    answer = Ops(agent).table()["probe"]

    with pytest.raises(LlmgwError, match="needs an address and a port"):
        await anext(answer({"op": "probe", "address": "a", "port": port}))
