"""Section 1 of the protocol from the node's end: what a request carries, and when."""

import gzip
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.session.link import GOODBYE_LIMIT
from llmgw.wire import Fact, Facts
from tests.fakes.control_plane import (
    Closed,
    ControlPlane,
    Exchange,
    close,
    hang,
    refuse,
    response,
)
from tests.fakes.linked import connected, link, running, until
from tests.fakes.node import FakeNode


async def test_facts_are_told_when_they_are_asked_for_and_when_they_change(
    tmp_path: Path,
) -> None:
    one, node = ControlPlane(), FakeNode()
    one.want = ["facts"]
    async with running(one), running(link(tmp_path, one, node=node)):
        first = await one.hears("facts")
        one.want = []
        node.known = Facts(hash="f2", facts={"os": Fact(source="t", age_s=1)})
        while (again := one.heard("facts")[-1]) is first:
            await one.hears("facts", len(one.heard("facts")) + 1)
        beats = len(one.heard("heartbeat"))
        await one.hears("heartbeat", beats + 3)
        told = len(one.heard("facts"))
        await one.hears("heartbeat", beats + 5)

    assert first.headers["content-encoding"] == "gzip"
    assert msgspec.json.decode(gzip.decompress(first.body))["hash"] == "f1"
    assert msgspec.json.decode(gzip.decompress(again.body))["hash"] == "f2"
    assert len(one.heard("facts")) == told  # nothing new, nothing told


@pytest.mark.parametrize(
    ("says", "really"),
    [
        ("connection: close", True),
        ("connection: close", False),
        ("HTTP/1.0", True),
        ("HTTP/1.0", False),
        ("no length", True),
    ],
)
async def test_a_server_that_ends_the_connection_with_every_answer_is_asked_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    says: str,
    really: bool,  # or it only says so, and leaves that to this end
) -> None:
    """As a proxy without keep-alive does; and as HTTP/1.0 is without a word, and an
    answer whose end is that of the connection.
    """
    caplog.set_level(logging.INFO)

    class Last(Exchange):
        async def answer(self, *words: Any, **headers: Any) -> None:
            if says == "connection: close":
                headers |= {"connection": "close"}
            answer = response(*words, **headers)
            if says == "HTTP/1.0":
                answer = answer.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
            unsaid = says == "no length" and b"content-length:" in answer
            if unsaid:
                answer = answer.replace(b"content-length:", b"x-was:", 1)
            await self.stream.send(answer)
            if really and (unsaid or says != "no length"):
                raise Closed

    class Closing(ControlPlane):
        async def _register(self, exchange: Exchange) -> None:
            await super()._register(Last(exchange.request, exchange.stream))

        async def _heartbeat(self, exchange: Exchange) -> None:
            await super()._heartbeat(Last(exchange.request, exchange.stream))

        async def _facts(self, exchange: Exchange) -> None:
            await super()._facts(Last(exchange.request, exchange.stream))

    standby, leader = Closing(standby=True), Closing()
    leader.want = ["facts"]
    async with running(standby, leader):
        mine = link(tmp_path, standby, leader)
        async with running(mine):
            await leader.hears("facts", 2)
            await leader.hears("heartbeat", 3)
            status = await connected(mine)

    assert (status.sessions, len(leader.heard("register"))) == (1, 1)
    seqs = [beat.json()["seq"] for beat in leader.heard("heartbeat")]
    assert seqs == sorted(set(seqs))
    assert "sent again" not in caplog.text
    assert "not delivered" not in caplog.text


async def test_only_what_changed_is_in_a_heartbeat_and_news_does_not_wait(
    tmp_path: Path,
) -> None:
    one, node = ControlPlane(), FakeNode()
    node.runs("a")
    node.runs("b")
    # A beat so slow that it cannot be what carries the news.
    slow = 8.0
    async with running(one), running(link(tmp_path, one, node=node, heartbeat=slow)):
        await one.hears("heartbeat")
        node.runs("b", state="unhealthy")
        news = await one.hears("heartbeat", 2)

    (replica,) = news.json()["replicas"]
    assert (replica["id"], replica["state"]) == ("b", "unhealthy")


async def test_all_replicas_are_told_again_when_asked_for(tmp_path: Path) -> None:
    one, node = ControlPlane(), FakeNode()
    node.runs("a")
    async with running(one), running(link(tmp_path, one, node=node)):
        await one.hears("heartbeat", 2)
        one.want = ["replicas"]
        number = len(one.heard("heartbeat"))
        await one.hears("heartbeat", number + 2)

    assert one.heard("heartbeat")[-1].json()["replicas"][0]["id"] == "a"


async def test_what_was_not_heard_is_said_again_to_the_next(tmp_path: Path) -> None:
    """T1."""
    one, node = ControlPlane(), FakeNode()
    node.runs("a")
    async with running(one), running(link(tmp_path, one, node=node)):
        await one.hears("heartbeat", 2)
        with one.told("heartbeat", close):
            node.runs("a", state="failed")
            await one.hears("register", 2)

    assert one.heard("register")[1].json()["replicas"][0]["state"] == "failed"


async def test_events_wait_for_a_link_and_those_dropped_are_counted(
    tmp_path: Path,
) -> None:
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        for number in range(300):
            mine.events.add("test", f"event {number}", replica="a")
        async with running(mine):
            events = (await one.hears("events")).json()
            mine.events.add("late", "one more")
            later = (await one.hears("events", 2)).json()

    assert events[0]["kind"] == "events_dropped"
    assert events[0]["data"] == {"dropped": 44}
    assert [event["text"] for event in events[1:3]] == ["event 44", "event 45"]
    assert len(events) == 257
    assert [event["text"] for event in later] == ["one more"]


async def test_events_that_were_not_taken_come_again(tmp_path: Path) -> None:
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            with one.told("events", close):
                mine.events.add("test", "an event")
                await one.hears("events")
            again = (await one.hears("events", 2)).json()

    assert [event["text"] for event in again] == ["an event"]


async def test_an_ask_is_answered_under_its_id(tmp_path: Path) -> None:
    one, node = ControlPlane(), FakeNode()
    async with running(one), running(link(tmp_path, one, node=node)):
        await one.hears("heartbeat")
        await one.push({"t": "ask", "id": "7/ü", "kind": "log_tail", "args": {}})
        answer = await one.hears("answers")

    assert answer.body == b"answer to log_tail"
    assert answer.path == "/v1/answers/7%2F%C3%BC"
    assert answer.query["session"] == one.sessions[0]


async def test_a_flood_of_asks_drowns_nothing(tmp_path: Path) -> None:
    """Some are dropped; heartbeats go on, and the next one asked is answered."""
    one, node = ControlPlane(), FakeNode()
    node.answers_after = 0.01
    ask = {"t": "ask", "kind": "doctor"}
    async with running(one), running(link(tmp_path, one, node=node)):
        await one.hears("heartbeat")
        lines = [msgspec.json.encode({**ask, "id": str(n)}) for n in range(2000)]
        await one.push(b"\n".join(lines) + b"\n")
        await one.hears("heartbeat", len(one.heard("heartbeat")) + 2)
        await one.hears("answers", 16)
        await one.push({**ask, "id": "after"})
        while one.heard("answers")[-1].path != "/v1/answers/after":
            await one.hears("answers", len(one.heard("answers")) + 1)

    assert 16 <= len(node.asked) < 2000
    assert len(one.heard("register")) == 1


async def test_goodbye_is_said_and_ends_the_link(tmp_path: Path) -> None:
    """T13."""
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            await mine.goodbye("stopping", "left_running")

    goodbye = one.heard("goodbye")[0].json()
    assert goodbye["session"] == one.sessions[0]
    assert (goodbye["reason"], goodbye["engines"]) == ("stopping", "left_running")


@pytest.mark.parametrize("handler", [hang, close, refuse(500, "oops")])
async def test_goodbye_takes_two_seconds_at_most(
    tmp_path: Path, handler: object
) -> None:
    """T13: also when nobody hears it, which would else be waited for without end."""
    one = ControlPlane()
    one.on["goodbye"] = handler  # pyright: ignore[reportArgumentType]
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            await mine.goodbye("stopping", "stopped")

    assert GOODBYE_LIMIT <= 2
    assert len(one.heard("goodbye")) == 1


async def test_the_control_plane_is_asked_to_connect_back(tmp_path: Path) -> None:
    """T21: both answers come through."""
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            there = await mine.probe("127.0.0.1", one.port)
            one.on["probe"] = lambda exchange: exchange.answer(
                {"reachable": False, "reason": "connection refused"}
            )
            away = await mine.probe("127.0.0.1", 1)

    assert (there.reachable, away.reachable) == (True, False)
    assert away.reason == "connection refused"


async def test_the_pace_is_the_control_planes_within_limits(tmp_path: Path) -> None:
    one = ControlPlane(heartbeat_s=0.001, lease_s=0.001)
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            status = await connected(mine)

    assert (status.heartbeat_s, status.lease_s) == (1.0, 3.0)


async def test_a_message_it_does_not_know_is_passed_over(tmp_path: Path) -> None:
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await one.hears("heartbeat")
            await one.push({"t": "confetti"})
            await one.push({"t": "ask", "id": "1", "kind": "survey", "novel": 1})
            await one.hears("answers")
            status = await until(mine, lambda _: True)

    assert status.sessions == 1
