"""What operators ask and write: answers that stream, and every fault told at once."""

import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from llmgw.control import bodies
from llmgw.wire import Ask
from tests.control.asking import Asking, refusal
from tests.control.conftest import Serving
from tests.fakes.linked import connected, link, running
from tests.fakes.node import FakeNode

A = {"id": "a", "engine": "command"}
Operator = Callable[[Asking], Coroutine[Any, Any, None]]


@asynccontextmanager
async def asked(plane: Asking, operator: Operator) -> AsyncGenerator[tuple[Ask, str]]:
    """What n1 is asked when *operator* asks something, and where its answer goes."""
    session = (await plane.register()).session
    async with anyio.create_task_group() as group, plane.stream(session) as lines:
        group.start_soon(operator, plane)
        ask = await lines.next(lambda line: isinstance(line, Ask))
        assert isinstance(ask, Ask)
        yield ask, f"/v1/answers/{ask.id}?session={session}"


async def test_an_answer_comes_as_the_node_sends_it(serving: Serving) -> None:
    """Piece by piece: the first is with the operator before the last is sent."""
    first_is_read = anyio.Event()
    got: list[bytes] = []

    async def operator(plane: Asking) -> None:
        async with plane.client.stream(
            "POST",
            "/v1/admin/nodes/n1/ask",
            json={"kind": "log_tail", "args": {"replica": "a"}},
            headers={"Authorization": f"Bearer {plane.token}"},
        ) as answer:
            async for piece in answer.aiter_bytes():
                got.append(piece)
                first_is_read.set()

    async def pieces() -> AsyncGenerator[bytes]:
        yield b"one"
        with anyio.fail_after(5):
            await first_is_read.wait()
        yield b"two"

    async with serving() as plane, asked(plane, operator) as (ask, path):
        done = await plane.client.post(path, content=pieces())
        assert done.status_code == 204
        assert (ask.kind, ask.args) == ("log_tail", {"replica": "a"})

    assert got == [b"one", b"two"]


async def test_a_node_is_asked_and_answers_end_to_end(
    serving: Serving, tmp_path: Path
) -> None:
    """The agent's own link, the reference control plane, the operator's door."""
    node = FakeNode()
    async with serving() as plane:
        await plane.want("n1", A)
        mine = link(tmp_path, plane.url, node=node)
        async with running(mine):
            await connected(mine)
            answer = await plane.admin("POST", "nodes/n1/ask", {"kind": "survey"})

    assert (answer.status_code, answer.content) == (200, b"answer to survey")
    assert [ask.kind for ask in node.asked] == ["survey"]


async def test_a_node_that_does_not_answer_is_a_fault_and_no_empty_answer(
    serving: Serving,
) -> None:
    async with serving() as plane:
        await plane.register()
        question = {"kind": "survey", "timeout_s": 0.1}
        silent = await plane.admin("POST", "nodes/n1/ask", question)
        unknown = await plane.admin("POST", "nodes/n9/ask", question)

    assert refusal(silent) == (504, "no_answer")
    assert refusal(unknown) == (404, "unknown_node")


@pytest.mark.parametrize("sent", [b"", b"5\r\nabcde\r\n"], ids=["nothing", "half"])
async def test_half_an_answer_is_not_taken_for_a_whole_one(
    serving: Serving, sent: bytes
) -> None:
    """The agent is killed in the middle of it."""
    told: list[httpx.Response | Exception] = []

    async def operator(plane: Asking) -> None:
        try:
            told.append(await plane.admin("POST", "nodes/n1/ask", {"kind": "survey"}))
        except httpx.TransportError as error:
            told.append(error)

    async with serving() as plane, asked(plane, operator) as (_ask, path):
        port = plane.client.base_url.port
        assert port
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            head = f"POST {path} HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked"
            await stream.send(f"{head}\r\n\r\n".encode() + sent)

    (answer,) = told
    if sent:
        assert isinstance(answer, httpx.RemoteProtocolError | httpx.ReadError)
    else:
        assert isinstance(answer, httpx.Response)
        assert refusal(answer) == (504, "no_answer")
        assert "hung up" in answer.json()["detail"]


async def test_all_that_is_wrong_in_a_body_is_told_at_once(serving: Serving) -> None:
    async with serving() as plane:
        document = {
            "replicas": [
                {"id": "A!", "engine": "lamacpp"},
                {"id": "b", "engine": "command", "port": 99999, "cpuss": 1},
            ],
            "drian": True,
        }
        answer = await plane.admin("PUT", "nodes/n1/replicas", document)
        question = await plane.admin("POST", "nodes/n1/ask", {"kind": "A", "x": 1})
        nodes = (await plane.admin("GET", "nodes")).json()["nodes"]

    assert refusal(answer) == (422, "invalid")
    assert {fault["where"] for fault in answer.json()["faults"]} == {
        "replicas[0].id",
        "replicas[0].engine",
        "replicas[1].port",
        "replicas[1].cpuss",
        "drian",
    }
    assert refusal(question) == (422, "invalid")
    assert {fault["where"] for fault in question.json()["faults"]} == {"kind", "x"}
    assert nodes == []  # nothing of it was taken


# The file ----------------------------------------------------------------------------


async def wanted(plane: Asking, *names: str) -> None:
    """Wait until just these are wanted on n1."""
    with anyio.fail_after(10):
        while True:
            answer = await plane.admin("GET", "nodes/n1/replicas")
            found = answer.json().get("replicas", ())
            if [replica["id"] for replica in found] == list(names):
                return
            await anyio.sleep(0.02)


async def test_a_file_that_cannot_be_read_for_a_while_changes_nothing(
    serving: Serving, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in its place stands for a share that is away; root may read the rest."""
    file = tmp_path / "desired.json"

    def away() -> None:
        file.unlink()
        file.mkdir()

    def back() -> None:
        file.rmdir()
        file.write_text(json.dumps({"n1": [A, {**A, "id": "b"}]}))

    in_thread = anyio.to_thread.run_sync
    await in_thread(file.write_text, json.dumps({"n1": [A]}))
    async with serving(desired_file=file) as plane:
        await wanted(plane, "a")
        await in_thread(away)
        with anyio.fail_after(10):
            while "desired file unread" not in caplog.text:
                await anyio.sleep(0.02)
        await wanted(plane, "a")
        await in_thread(back)
        await wanted(plane, "a", "b")

    assert caplog.text.count("desired file unread") == 1


@pytest.mark.parametrize(
    "wrong", ["{", '{"n1": [{"id": "b"}]}', "[]", '{"n1": [{"id": "A!"}]}']
)
async def test_the_file_is_read_again_and_a_wrong_one_changes_nothing(
    serving: Serving, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "desired.json"

    def write(text: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    in_thread = anyio.to_thread.run_sync
    await in_thread(write, json.dumps({"n1": [A]}))
    async with serving(desired_file=file) as plane:
        await wanted(plane, "a")
        before = (await plane.admin("GET", "nodes/n1/replicas")).json()
        await in_thread(write, wrong)
        with anyio.fail_after(10):
            while "desired file wrong" not in caplog.text:  # that it was read
                await anyio.sleep(0.02)
        during = (await plane.admin("GET", "nodes/n1/replicas")).json()
        await in_thread(write, json.dumps({"n1": [A, {**A, "id": "b"}]}))
        await wanted(plane, "a", "b")

    assert during == before


def test_what_no_agent_would_take_is_refused_before_it_is_wanted() -> None:
    """Each agent refuses it whole, and would keep what it had without a word to us."""

    def file(ids: list[str]) -> bytes:
        each = [{"id": id, "generation": 1, "engine": "llamacpp"} for id in ids]
        return json.dumps({"n1": each}).encode()

    assert isinstance(bodies.by_node(file([f"r{n}" for n in range(1000)])), dict)
    for ids, what in (
        ([f"r{n}" for n in range(1001)], "1001 replicas are more than 1000"),
        (["a", "b", "a"], "a stands twice"),
    ):
        [flaw] = bodies.by_node(file(ids))
        assert isinstance(flaw, bodies.Flaw)
        assert what in flaw.what
