"""A session from register to its end, over HTTP."""

from pathlib import Path

import anyio
import pytest

from llmgw.control.sessions import Session, Sessions
from llmgw.wire import AgentInfo, Bye
from tests.control.asking import refusal, register
from tests.control.conftest import Serving

A = {"id": "a", "engine": "command"}


async def test_what_is_wanted_comes_whole_and_again_when_it_changes(
    serving: Serving,
) -> None:
    async with serving() as plane:
        await plane.want("n1", A)
        session = (await plane.register()).session
        async with plane.stream(session) as lines:
            first = await lines.snapshot()
            await plane.want("n1", A, {"id": "b", "engine": "command"})
            second = await lines.snapshot()

    assert first.complete
    assert [one.replica.id for one in first.wanted()] == ["a"]
    assert [one.replica.id for one in second.wanted()] == ["a", "b"]
    assert second.rev > first.rev
    # Unchanged, so that the engine is kept: same generation, same digest.
    assert first.wanted()[0] == second.wanted()[0]


async def test_a_node_nobody_spoke_of_is_told_nothing(serving: Serving) -> None:
    """T22: a control plane that lost its disk stops no engine."""
    async with serving() as plane:
        session = (await plane.register()).session
        async with plane.stream(session) as lines:
            line = await lines.next()

    assert type(line).__name__ == "Ping"


async def test_another_machine_is_told_of_the_first(serving: Serving) -> None:
    """T41."""
    async with serving() as plane:
        await plane.register()
        other = register(instance="i2", machine_id_hash="m2")
        answer = await plane.post("/v1/register", other)

    assert refusal(answer) == (409, "node_in_use")
    assert "another machine" in answer.json()["detail"]


async def test_a_copied_machine_is_found_by_its_boot(serving: Serving) -> None:
    """T41: with the state directory and the machine id copied too."""
    async with serving() as plane:
        await plane.register(boot_id="b1")
        await plane.register(boot_id="b2")
        answer = await plane.post("/v1/register", register(boot_id="b1"))

    assert refusal(answer) == (409, "node_in_use")


async def test_a_lost_state_directory_is_let_in_once_its_agent_is_gone(
    serving: Serving,
) -> None:
    """T41: on the same boot of the same machine, and not while the other is heard."""
    async with serving(heartbeat_s=20.0) as plane:  # a lease that nothing waits for
        session = (await plane.register()).session
        anew = register(instance="i2")
        async with plane.stream(session):
            beside = await plane.post("/v1/register", anew)
        with anyio.fail_after(10):
            while (await plane.post("/v1/register", anew)).status_code != 200:
                await anyio.sleep(0.02)

    assert refusal(beside) == (409, "node_in_use")


@pytest.mark.parametrize(
    ("boot_id", "is_heard", "is_taken"),
    [("b1", False, True), ("b1", True, False), ("b2", False, False)],
)
def test_a_lost_state_directory_is_only_ever_one_of_the_same_boot(
    boot_id: str, is_heard: bool, is_taken: bool
) -> None:
    """T41: a copy of the machine has its id, and another boot."""
    sessions = Sessions(15.0, lambda: 0.0)
    first = sessions.open(register(), None)
    assert isinstance(first, Session)
    first.is_heard = lambda: is_heard

    second = sessions.open(register(instance="i2", boot_id=boot_id), None)

    assert isinstance(second, Session) == is_taken


async def test_a_registration_that_does_not_come_to_an_end_is_given_up(
    serving: Serving,
) -> None:
    """3.1: as the agent gave it up; and who comes while too many do is told when."""
    async with serving(register_limit_s=0.5, register_most=1) as plane:
        host, port = "127.0.0.1", int(plane.url.rpartition(":")[2])
        head = "POST /v1/register HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
        async with await anyio.connect_tcp(host, port) as slow:
            await slow.send(head.encode())
            with anyio.fail_after(5):
                while True:
                    answer = await plane.post("/v1/register", register())
                    if answer.status_code != 200:
                        break
                said = await slow.receive()
        after = await plane.post("/v1/register", register())

    assert refusal(answer) == (429, "busy")
    assert answer.json()["retry_after_s"] > 0
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"busy"' in said
    assert after.status_code == 200


async def test_the_same_agent_replaces_its_session(serving: Serving) -> None:
    async with serving() as plane:
        old = (await plane.register()).session
        async with plane.stream(old) as lines:
            new = (await plane.register()).session
            bye = await lines.next(lambda line: isinstance(line, Bye))
        answer = await plane.beat(old)
        fine = await plane.beat(new)

    assert bye == Bye(reason="replaced")
    assert refusal(answer) == (404, "unknown_session")
    assert fine.status_code == 200


async def test_an_upgrade_or_another_host_name_is_the_same_node(
    serving: Serving,
) -> None:
    """T42: one node, known by its newest name and version."""
    async with serving() as plane:
        await plane.register(hostname="old", agent=AgentInfo(version="1"))
        await plane.register(hostname="new", agent=AgentInfo(version="2"))
        (node,) = (await plane.admin("GET", "nodes")).json()["nodes"]

    assert (node["node_id"], node["state"]) == ("n1", "live")
    assert (node["hostname"], node["agent"]) == ("new", "2")


async def test_a_silent_node_loses_its_session(serving: Serving) -> None:
    async with serving() as plane:
        session = (await plane.register()).session
        with anyio.fail_after(8):
            while (await plane.admin("GET", "sessions")).json()["sessions"]:
                await anyio.sleep(0.05)
        answer = await plane.beat(session)
        node = (await plane.admin("GET", "nodes/n1")).json()
        events = (await plane.admin("GET", "events?node=n1")).json()["events"]

    assert refusal(answer) == (404, "unknown_session")
    assert node["state"] == "lost"
    assert [one["event"]["kind"] for one in events] == ["registered", "lost"]


async def test_a_higher_epoch_ends_the_lead(serving: Serving) -> None:
    async with serving() as plane:
        session = (await plane.register("n2")).session
        answer = await plane.post("/v1/register", register(epoch_seen=9))
        then = await plane.post("/v1/register", register("n3"))
        beat = await plane.beat(session)
        leader = (await plane.client.get("/v1/leader")).json()

    assert refusal(answer) == (409, "stale_epoch")
    assert refusal(then) == (421, "not_leader")
    assert refusal(beat) == (421, "not_leader")
    assert leader["leader"] is False


async def test_each_start_is_a_new_epoch_and_remembers_what_is_wanted(
    serving: Serving, tmp_path: Path
) -> None:
    async with serving(state_dir=tmp_path / "kept") as plane:
        first = await plane.register()
        await plane.want("n1", A)
    async with serving(state_dir=tmp_path / "kept") as plane:
        second = await plane.register()
        async with plane.stream(second.session) as lines:
            snapshot = await lines.snapshot()
    async with serving(state_dir=tmp_path / "kept", epoch_floor=50) as plane:
        third = await plane.register()

    assert (first.epoch, second.epoch, third.epoch) == (1, 2, 50)
    assert snapshot.epoch == 2
    assert [one.replica.id for one in snapshot.wanted()] == ["a"]


async def test_another_protocol_is_told_what_is_spoken(serving: Serving) -> None:
    async with serving() as plane:
        answer = await plane.post("/v1/register", register(protocol=(7,)))

    assert refusal(answer) == (426, "protocol")
    assert answer.json()["accepts"] == [1]


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[]", b'{"node_id":3}'])
async def test_garbage_is_refused_with_its_reason(
    serving: Serving, body: bytes
) -> None:
    async with serving() as plane:
        answer = await plane.client.post("/v1/register", content=body)

    assert refusal(answer) == (400, "malformed")


async def test_the_role_file_decides_who_leads(
    serving: Serving, tmp_path: Path
) -> None:
    role = tmp_path / "role"
    role.write_text("leader 7\n")
    async with serving(role="follow-file", role_file=role) as plane:
        registered = await plane.register()
        async with plane.stream(registered.session) as lines:
            role.write_text("standby http://cp2:7443\n")
            bye = await lines.next(lambda line: isinstance(line, Bye))
        answer = await plane.post("/v1/register", register())
        role.write_text("off\n")
        with anyio.fail_after(5):
            while await _is_open(plane.url):
                await anyio.sleep(0.02)
        role.write_text("leader 8\n")
        with anyio.fail_after(5):
            while not await _is_open(plane.url):
                await anyio.sleep(0.02)
        again = await plane.register()

    assert bye == Bye(reason="not_leader", leader="http://cp2:7443")
    assert refusal(answer) == (421, "not_leader")
    assert answer.json()["leader"] == "http://cp2:7443"
    assert (registered.epoch, again.epoch) == (7, 8)


async def _is_open(url: str) -> bool:
    try:
        stream = await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2]))
    except OSError:
        return False
    await stream.aclose()
    return True


async def test_leaving_tells_every_agent(serving: Serving) -> None:
    async with serving() as plane:
        session = (await plane.register()).session
        async with plane.stream(session) as lines:
            plane.leave()
            bye = await lines.next(lambda line: isinstance(line, Bye))

    assert bye == Bye(reason="shutdown")
