"""Groups over the nodes' own requests: what each is sent, and when."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from llmgw.wire import Fact, Facts, ReplicaStatus, Snapshot
from tests.control.asking import Asking, Lines
from tests.control.conftest import Serving

DIGEST = "sha256:b1"


def member(rank: int, **more: Any) -> dict[str, Any]:
    group = {"id": "g", "rank": rank, "size": 2}
    return {"id": f"r{rank}", "engine": "llamacpp", "group": group, **more}


class Node:
    """An agent's side of one session, by hand. *n1* is at 10.0.0.1."""

    def __init__(self, plane: Asking, name: str) -> None:
        self.plane = plane
        self.name = name
        self.address = f"10.0.0.{name[1:]}"
        self.session = ""
        self.seq = 0
        self.lines: Lines

    async def join(self, stack: AsyncExitStack, **more: Any) -> "Node":
        more = {"mgmt_addr": self.address, "instance": self.name, **more}
        self.session = (await self.plane.register(self.name, **more)).session
        self.lines = await stack.enter_async_context(self.plane.stream(self.session))
        return self

    async def tell_builds(self, *digests: str) -> "Node":
        builds = [
            {"name": f"b{number}", "engine": "llamacpp", "digest": digest}
            for number, digest in enumerate(digests)
        ]
        facts = {"builds": Fact(source="test", age_s=0, value=builds)}
        body = msgspec.json.encode(Facts(hash="h", facts=facts))
        path = f"/v1/facts?session={self.session}"
        answer = await self.plane.client.put(path, content=body)
        assert answer.status_code == 204
        return self

    async def say(self, state: str, rank: int, generation: int, **more: Any) -> None:
        self.seq += 1
        status = ReplicaStatus(
            id=f"r{rank}",
            generation=generation,
            state=state,  # pyright: ignore[reportArgumentType] -- a test's choice
            since_s=0,
            **more,
        )
        answer = await self.plane.beat(self.session, self.seq, replicas=(status,))
        assert answer.status_code == 200

    async def drain(self, *, draining: bool) -> None:
        self.seq += 1
        await self.plane.beat(self.session, self.seq, draining=draining)

    async def sent(self) -> Snapshot:
        """The next snapshot with a replica in it."""
        while True:
            snapshot = await self.lines.snapshot()
            if snapshot.replicas:
                return snapshot

    async def taken_back(self) -> None:
        while (await self.lines.snapshot()).replicas:
            pass


async def state_of(plane: Asking) -> dict[str, Any]:
    answer = await plane.admin("GET", "groups")
    [group] = answer.json()["groups"]
    return group


async def until(plane: Asking, state: str, reason: str = "") -> dict[str, Any]:
    with anyio.fail_after(10):
        while True:
            answer = (await plane.admin("GET", "groups")).json()["groups"]
            for group in answer:
                if group["state"] == state and reason in group.get("reason", ""):
                    return group
            await anyio.sleep(0.01)


async def two(plane: Asking, stack: AsyncExitStack) -> tuple[Node, Node]:
    """Two nodes with one build, and a group that has been sent to them."""
    await plane.want("n1", member(0))
    await plane.want("n2", member(1))
    first = await (await Node(plane, "n1").join(stack)).tell_builds(DIGEST)
    second = await (await Node(plane, "n2").join(stack)).tell_builds(DIGEST)
    return first, second


async def both_ready(plane: Asking, stack: AsyncExitStack) -> tuple[Node, Node]:
    first, second = await two(plane, stack)
    for node, rank in ((first, 0), (second, 1)):
        await node.sent()
        await node.say("ready", rank, 1, pid=100)
    await until(plane, "ready")
    return first, second


async def test_what_only_a_control_plane_knows_is_filled_in(serving: Serving) -> None:
    """T88, T89: one head, one list of members, one build, on the nodes' addresses."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await two(plane, stack)
        [head] = [one.replica for one in (await first.sent()).wanted()]
        [other] = [one.replica for one in (await second.sent()).wanted()]

    assert head.group is not None
    assert other.group is not None
    assert head.group.head == "10.0.0.1"
    assert head.group.members == ("10.0.0.1:20998", "10.0.0.2:20999")
    assert head.group.port == 20998
    assert head.group.build_digest == DIGEST
    assert msgspec.structs.replace(other.group, rank=0) == head.group


async def test_none_is_sent_before_all_can_start(serving: Serving) -> None:
    """All or none: the first node is told nothing of it while the second is away."""
    async with serving() as plane, AsyncExitStack() as stack:
        await plane.want("n1", member(0))
        await until(plane, "failed", "it has the ranks 0, and its size is 2")
        await plane.want("n2", member(1))
        first = await (await Node(plane, "n1").join(stack)).tell_builds(DIGEST)
        assert (await first.lines.snapshot()).replicas == ()
        await until(plane, "waiting", "n2 is not connected")
        second = await Node(plane, "n2").join(stack, draining=True)
        await until(plane, "waiting", "n2 drains")
        await second.drain(draining=False)
        await until(plane, "waiting", "n2 has not told its builds yet")

        await second.tell_builds(DIGEST)

        await first.sent()
        await second.sent()


async def test_nodes_with_different_builds_are_refused_before_launch(
    serving: Serving,
) -> None:
    """T88."""
    async with serving() as plane, AsyncExitStack() as stack:
        await plane.want("n1", member(0))
        await plane.want("n2", member(1))
        await (await Node(plane, "n1").join(stack)).tell_builds(DIGEST)
        second = await (await Node(plane, "n2").join(stack)).tell_builds("sha256:b2")
        differ = "different builds (n1: sha256:b1, n2: sha256:b2)"
        await until(plane, "waiting", differ)
        await second.tell_builds(DIGEST, "sha256:b2")
        await until(plane, "waiting", "n2 has the builds b0, b1: name one")
        await plane.want("n2", member(1, build="b0"))

        await second.sent()


async def test_a_death_restarts_all_once_and_only_when_all_have_ended(
    serving: Serving,
) -> None:
    """T90: the group is stopped, said once, and started together."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await both_ready(plane, stack)

        await second.say("backoff", 1, 1, reason="exited with code 1")
        await first.taken_back()
        await second.taken_back()
        await second.say("stopped", 1, 1)
        # The head has not ended: a member that starts now would be met by the old one.
        await first.say("stopping", 0, 1)
        await until(plane, "waiting", "of its last run, r0 on n1 has not ended")
        await first.say("stopped", 0, 1)

        again = [(await node.sent()).wanted()[0].replica for node in (first, second)]
        events = (await plane.admin("GET", "events")).json()["events"]
        view = await state_of(plane)

    assert [one.generation for one in again] == [2, 2]
    said = [one["event"]["text"] for one in events if one["event"]["kind"] == "group"]
    assert sum("r1 on n2 is backoff: exited with code 1" in one for one in said) == 1
    assert view["restarts"] == 1
    assert view["generation"] == 2


async def test_a_death_before_it_served_is_waited_out_and_told_once(
    serving: Serving,
) -> None:
    """T90: what comes after it, and the wait, are no deaths of their own."""
    async with serving(heartbeat_s=10.0) as plane, AsyncExitStack() as stack:
        first, second = await two(plane, stack)
        await first.sent()
        await second.sent()
        await first.say("starting", 0, 1, pid=1)
        await second.say("backoff", 1, 1, reason="exited with code 1")
        await second.taken_back()
        await second.say("stopped", 1, 1)
        await until(plane, "waiting", "r0 on n1 has not ended")
        await first.say("stopped", 0, 1)

        await until(plane, "backoff", "r1 on n2 is backoff: exited with code 1")

        events = (await plane.admin("GET", "events")).json()["events"]
    said = [one["event"]["text"] for one in events if one["event"]["kind"] == "group"]
    assert sum(" is backoff: " in one.split(";")[0] for one in said) == 1


async def test_a_member_that_is_another_process_is_a_death(serving: Serving) -> None:
    """T90: its node was rebooted and started it alone; its peers know nothing of it."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await two(plane, stack)
        await first.sent()
        await first.say("ready", 0, 1, pid=100)
        await second.say("ready", 1, 1, pid=100)
        await until(plane, "ready")

        await second.say("starting", 1, 1, pid=200)

        await first.taken_back()


@pytest.mark.parametrize("state", ["failed", "stopped"])
async def test_a_member_that_cannot_be_takes_the_others_back(
    serving: Serving, state: str
) -> None:
    """It stays with its node, which says why; a new wish tries all of them again."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await two(plane, stack)
        await first.sent()
        await second.sent()
        await first.say("starting", 0, 1, pid=1)
        await second.say(state, 1, 1, reason="no such model")
        await first.taken_back()
        await first.say("stopped", 0, 1)
        group = await until(plane, "failed", f"r1 on n2 is {state}: no such model")
        assert {one["state"] for one in group["members"]} == {state, "stopped"}

        await plane.want("n2", member(1, context=512))

        again = [(await node.sent()).wanted()[0].replica for node in (first, second)]

    assert [one.generation for one in again] == [2, 2]


async def test_a_lost_node_stops_nothing(serving: Serving) -> None:
    """T16: an agent that is away says nothing of its engine."""
    async with serving(heartbeat_s=1.0) as plane, AsyncExitStack() as stack:
        first, second = await two(plane, stack)
        await first.sent()
        await first.say("ready", 0, 1)
        await second.say("ready", 1, 1)
        await until(plane, "ready")
        with anyio.fail_after(10):
            while True:
                await first.say("ready", 0, 1)
                nodes = (await plane.admin("GET", "nodes")).json()["nodes"]
                if any(one["state"] == "lost" for one in nodes):
                    break
                await anyio.sleep(0.1)
        # Said again, and still there: a new wish is a new snapshot.
        await plane.want("n1", member(0), {"id": "other", "engine": "command"})

        ids = [one.replica.id for one in (await first.sent()).wanted()]

    assert ids == ["r0", "other"]


async def test_what_was_decided_outlives_the_control_plane(
    serving: Serving, tmp_path: Any
) -> None:
    async with serving(state_dir=tmp_path / "cp") as plane, AsyncExitStack() as stack:
        first, _ = await two(plane, stack)
        before = (await first.sent()).replicas
    async with serving(state_dir=tmp_path / "cp") as plane, AsyncExitStack() as stack:
        first = await Node(plane, "n1").join(stack)

        assert (await first.lines.snapshot()).replicas == before


async def test_a_death_that_cannot_be_written_down_is_one_death(
    serving: Serving, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T90: on a full disk each try would count, and the group be taken for hopeless."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await both_ready(plane, stack)
        desired = anyio.Path(tmp_path / "cp1" / "desired")
        beside = [desired / "n1.json.new", desired / "n2.json.new"]
        for one in beside:
            await one.symlink_to("/dev/full")

        await second.say("backoff", 1, 1, reason="exited with code 1")
        with anyio.fail_after(20):
            while caplog.text.count("group not written yet") < 3:
                await anyio.sleep(0.01)
        assert (await state_of(plane))["restarts"] == 1

        for one in beside:
            await one.unlink()
        await first.taken_back()
        await second.taken_back()
        assert (await state_of(plane))["restarts"] == 1


@pytest.mark.parametrize("pid", [None, 200])
async def test_agents_that_know_nothing_of_it_any_more_do_not_hide_a_death(
    serving: Serving, pid: int | None
) -> None:
    """T90: nobody tells which generation ran, and so the next attempt is of the same
    one. It is another attempt, its processes are no strangers, and it can die."""
    async with serving() as plane, AsyncExitStack() as stack:
        first, second = await both_ready(plane, stack)
        await second.say("backoff", 1, 1, reason="exited with code 1")
        with anyio.fail_after(10):
            await first.taken_back()
            await second.taken_back()
        nodes = [
            await (await Node(plane, name).join(stack)).tell_builds(DIGEST)
            for name in ("n1", "n2")
        ]
        with anyio.fail_after(10):
            sent = [
                [one.replica for one in (await node.sent()).wanted()] for node in nodes
            ]
        for rank, (node, [one]) in enumerate(zip(nodes, sent, strict=True)):
            more = {} if pid is None else {"pid": pid + rank}
            await node.say("ready", rank, one.generation, **more)
        await until(plane, "ready")

        generation = sent[1][0].generation
        await nodes[1].say("backoff", 1, generation, reason="exited again")
        waiting = await until(plane, "backoff", "exited again")

        assert waiting["restarts"] == 2
