"""What reaches the port and makes no sense: refused, in few words, and that is all."""

import json
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadStatusLine
from hypothesis import given
from hypothesis import strategies as st

from llmgw.control import bodies
from llmgw.control.access import token_in
from llmgw.control.http_log import Requests
from llmgw.control.state import renewed
from llmgw.errors import LlmgwError
from llmgw.wire import Probe, Probed
from tests.control.asking import Asking, refusal, register
from tests.control.conftest import Serving


@pytest.fixture
async def plane(serving: Serving) -> AsyncGenerator[Asking]:
    async with serving() as one:
        yield one


async def exchanged(stream: anyio.abc.ByteStream, raw: bytes) -> bytes:
    """What is answered to *raw* until the connection ends."""
    answer = b""
    with anyio.fail_after(10):
        async with stream:
            await stream.send(raw)
            try:
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return answer


def head(*lines: bytes) -> bytes:
    return b"\r\n".join([*lines, b"Host: c", b"Connection: close", b"", b""])


async def connect(plane: Asking) -> anyio.abc.ByteStream:
    assert plane.client.base_url.port
    return await anyio.connect_tcp("127.0.0.1", plane.client.base_url.port)


# The token ---------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"caf\xe9", b"\xff\xfe\xff", "schlüssel".encode()])
async def test_a_token_that_is_no_ascii_is_refused_as_any_other(
    plane: Asking, sent: bytes
) -> None:
    lines = b"GET /v1/admin/nodes HTTP/1.1", b"Authorization: Bearer " + sent
    answer = await exchanged(await connect(plane), head(*lines))

    assert b" 401 " in answer.partition(b"\r\n")[0], answer
    assert b"not_allowed" in answer


@pytest.mark.parametrize(
    "token", ["geheimes-schlüsselwort".encode(), b"secret-of-latin-\xe9\xff"]
)
async def test_a_token_file_may_hold_whatever_a_header_can_carry(
    serving: Serving, tmp_path: Path, token: bytes
) -> None:
    file = tmp_path / "token"
    await anyio.to_thread.run_sync(file.write_bytes, token + b"\n")

    async with serving(state_dir=tmp_path / "cp", admin_token_file=file) as plane:
        lines = b"GET /v1/admin/nodes HTTP/1.1", b"Authorization: Bearer " + token
        answer = await exchanged(await connect(plane), head(*lines))

    assert b" 200 " in answer.partition(b"\r\n")[0], answer


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"short", "at least 16"),
        (b"", "at least 16"),
        ("a token of an editor".encode("utf-16"), "no header can carry"),
        (b"-----BEGIN KEY-----\nabcdef\n-----END KEY-----\n", "more than one word"),
        (b"sixteen letters\0 or more", "no header can carry"),
    ],
)
def test_a_token_that_nobody_could_send_is_told_at_the_start(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(LlmgwError, match=says) as caught:
        token_in(file)
    assert caught.value.where == str(file)


# Numbers and names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("127.0.0.1", -1),
        ("127.0.0.1", 0),
        ("127.0.0.1", 65536),
        ("localhost", 2**53),
        ("ü" * 70, 1),
    ],
)
async def test_where_nobody_can_connect_is_not_reachable(
    plane: Asking, address: str, port: int
) -> None:
    session = (await plane.register(mgmt_addr=address)).session

    probe = Probe(address=address, port=port)
    answer = await plane.post(f"/v1/probe?session={session}", probe)

    assert answer.status_code == 200, answer.text
    said = msgspec.json.decode(answer.content, type=Probed)
    assert not said.reachable
    assert said.reason


@pytest.mark.parametrize("after", ["9" * 5000, "9" * 19, "-1", "٣", "²", "", "1e3"])
async def test_a_number_that_is_none_is_named(plane: Asking, after: str) -> None:
    await plane.register()  # so that there is an event to compare with
    answer = await plane.admin("GET", f"events?after={quote(after)}")

    assert refusal(answer) == (422, "invalid")
    assert "after=" in answer.json()["detail"]
    assert len(answer.content) < 200


@pytest.mark.parametrize(
    ("field", "where"),
    [
        ('"cpus": Infinity', "cpus"),
        ('"cpus": -Infinity', "cpus"),
        ('"cpus": NaN', "cpus"),
        ('"cpus": 1e999', "cpus"),
        ('"cpus": ' + "9" * 400, "cpus"),
        ('"memory": ' + "9" * 30, "memory"),
        (f'"generation": {2**63}', "generation"),
        ('"restart": {"base_s": -1}', "restart.base_s"),
        ('"restart": {"crash_loop_after": 0}', "restart.crash_loop_after"),
        ('"disconnect": {"stop_after": Infinity}', "disconnect.stop_after"),
        ('"lora": [{"source": "a", "scale": NaN}]', "lora[0].scale"),
        ('"args": ["a", "\\u0000"]', "args[1]"),
        ('"env": {"A": "\\u0000"}', "env.A"),
        ('"model": {"name": "a\\u0000b"}', "model.name"),
    ],
)
async def test_what_json_or_a_process_has_no_word_for_is_named(
    plane: Asking, field: str, where: str
) -> None:
    body = '{"replicas": [{"id": "a", "engine": "command", FIELD}]}'
    raw = body.replace("FIELD", field)
    answer = await plane.admin("PUT", "nodes/n1/replicas", raw=raw)

    assert refusal(answer) == (422, "invalid")
    (fault,) = answer.json()["faults"]
    assert fault["where"] == f"replicas[0].{where}"
    assert fault["what"]


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e999", "9" * 40])
async def test_a_question_is_as_strict(plane: Asking, value: str) -> None:
    await plane.register()
    body = '{"kind": "survey", "args": {"a": [1, {"b": VALUE}]}}'
    raw = body.replace("VALUE", value)
    answer = await plane.admin("POST", "nodes/n1/ask", raw=raw)

    assert refusal(answer) == (422, "invalid")
    assert answer.json()["faults"][0]["where"] == "args.a[1].b"


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.integers(62, 1100).map(lambda n: 2**n),
    st.integers(300, 320).map(lambda n: float(f"1e{n}")),
)
REPLICAS = st.fixed_dictionaries(
    {"id": st.sampled_from("abc"), "engine": st.just("command")},
    optional={
        "cpus": NUMBERS,
        "memory": NUMBERS,
        "generation": NUMBERS,
        "args": st.lists(st.text(max_size=4), max_size=2),
        "env": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "restart": st.fixed_dictionaries({}, optional={"base_s": NUMBERS}),
        "model": st.fixed_dictionaries({"name": st.text(max_size=4)}),
    },
)


@given(st.lists(REPLICAS, max_size=3))
def test_what_is_taken_is_what_an_agent_can_read(replicas: list[Any]) -> None:
    """Whatever Python writes as JSON, words that JSON does not have among it."""
    found = bodies.want(json.dumps({"replicas": replicas}).encode(), "n1")
    if isinstance(found, list):
        assert all(flaw.what for flaw in found)
        return

    snapshot = renewed(None, found.replicas).snapshot(1)
    read = msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot))

    assert [one.replica.id for one in read.wanted()] == [one["id"] for one in replicas]


@pytest.mark.parametrize(
    "name", ["a\0b", "a\nb", " a", "é" * 60, "n" * 300, "n" * 7000]
)
async def test_a_name_that_no_node_can_have_is_refused_to_both_sides(
    plane: Asking, name: str
) -> None:
    """And not as `busy`, which would have the same be tried for ever."""
    path = f"nodes/{quote(name, safe='')}/replicas"
    operator = await plane.admin("PUT", path, {"replicas": []})
    agent = await plane.post("/v1/register", register(name))

    assert refusal(operator) == (422, "invalid")
    assert operator.json()["faults"][0]["where"] == "node_id"
    assert refusal(agent) == (400, "malformed")
    assert "node_id" in agent.json()["detail"]
    assert (await plane.admin("GET", "nodes")).json() == {"nodes": []}


@pytest.mark.parametrize("epoch", [-1, 2**63, 10**30])
async def test_an_epoch_that_cannot_be_ends_no_lead(plane: Asking, epoch: int) -> None:
    """To step down for it would be to be led by nobody ever again."""
    session = (await plane.register()).session
    registering = await plane.post("/v1/register", register("n2", epoch_seen=epoch))
    beating = await plane.beat(session, epoch=epoch)

    assert refusal(registering) == refusal(beating) == (400, "malformed")
    assert (await plane.client.get("/v1/leader")).json()["leader"] is True


# Bytes -------------------------------------------------------------------------------

GARBAGE = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 500,
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: c\r\n\r\n",
    "no method": b"\0\xff\xfe garbage\r\n\r\n",
    "no version": b"GET / HTTP/9.9\r\n\r\n",
    "a long line": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: c\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    "no length": b"POST /v1/register HTTP/1.1\r\nContent-Length: zz\r\n\r\n",
    "no chunk": head(b"POST /v1/register HTTP/1.1", b"Transfer-Encoding: chunked")
    + b"zz\r\n",
    "no address": head(b"GET http://[::bad/ HTTP/1.1"),
    "no gzip": head(
        b"POST /v1/register HTTP/1.1",
        b"Content-Encoding: gzip",
        b"Content-Length: 5",
    )
    + b"abcde",
}


@pytest.mark.parametrize("door", ["port", "socket"])
@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE)
async def test_nonsense_is_400_and_one_line(
    serving: Serving,
    tmp_path: Path,
    door: str,
    raw: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often: the log is for what somebody should read."""
    path = tmp_path / "admin.sock"
    async with serving(admin_socket=path) as plane:
        for _ in range(3):
            if door == "port":
                stream = await connect(plane)
            else:
                stream = await anyio.connect_unix(path)
            answer = await exchanged(stream, raw)
            assert b" 400 " in answer.partition(b"\r\n")[0], answer
        after = (await plane.client.get("/v1/leader")).status_code

    told = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert after == 200
    assert [one for one in told if one.exc_info] == []
    assert len(told) == 1
    assert len(told[0].getMessage()) < 250


@pytest.mark.parametrize(
    "path", ["/v1/register", "/v1/heartbeat", "/v1/facts?session=", "/v1/goodbye"]
)
async def test_an_agent_killed_in_its_request_is_no_fault_of_ours(
    plane: Asking, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = (await plane.register()).session
    line = f"POST {path}{session if '=' in path else ''} HTTP/1.1"
    if "facts" in path:
        line = line.replace("POST", "PUT")
    stream = await connect(plane)
    await stream.send(f"{line}\r\nHost: c\r\nContent-Length: 50\r\n\r\n{{".encode())
    # It has begun to read: a later request of another connection is answered.
    assert (await plane.client.get("/v1/leader")).status_code == 200
    await stream.aclose()
    assert (await plane.beat(session)).status_code == 200

    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def nonsense() -> Exception:
    return BadStatusLine("x" * 5000)


@pytest.mark.parametrize("error", [nonsense, web.RequestPayloadError])
def test_what_was_left_unsaid_is_counted(
    error: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    said = Requests(lambda: now)
    for _ in range(4):
        said.exception("Error handling request from %s", "10.0.0.1", exc_info=error())
    now += 61
    said.exception("Unhandled exception", exc_info=error())

    assert ["unsaid=0" in one.getMessage() for one in caplog.records] == [True, False]
    assert "10.0.0.1" in caplog.records[0].getMessage()
    assert "unsaid=3" in caplog.records[1].getMessage()


def test_a_fault_of_ours_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Requests().exception("Error handling request", exc_info=KeyError("ours"))

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info
