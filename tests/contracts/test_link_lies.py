"""Delays, silence, half answers and lies, at every point where one can happen."""

import logging
import time
from email.utils import formatdate
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest

from llmgw.config import keys
from llmgw.session.dial import Resolver
from llmgw.session.kept import Kept, load, machine
from llmgw.session.node import Identity
from tests.fakes import linked
from tests.fakes.control_plane import (
    ControlPlane,
    Exchange,
    Handler,
    close,
    drip,
    hang,
    raw,
    refuse,
    response,
)
from tests.fakes.linked import connected, link, running, until, wanted
from tests.fakes.node import FakeNode

A = {"id": "a", "generation": 1, "engine": "command"}
ACCEPTED = response({"session": "s", "epoch": 1, "lease_s": 15})
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def chunk(line: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(line), line)


SNAPSHOT = msgspec.json.encode(
    {"t": "snapshot", "epoch": 1, "rev": 9, "complete": True, "replicas": []}
)
_LINE = ACCEPTED.index(b"\r\n")
_BODY = ACCEPTED.index(b"\r\n\r\n") + 4
CUTS = [
    0,
    5,  # in the version
    10,  # in the status
    _LINE,
    _LINE + 1,  # in the end of the line
    _LINE + 2,
    _LINE + 9,  # in a header's name
    _BODY - 6,  # in a header's value: a shorter length
    _BODY - 4,
    _BODY - 2,  # of the headers all but the empty line
    _BODY - 1,
    _BODY,
    _BODY + 1,
    len(ACCEPTED) - 30,
    len(ACCEPTED) - 1,
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("silent", [False, True])
async def test_an_answer_that_stops_at_any_byte_is_none(
    tmp_path: Path, cut: int, silent: bool
) -> None:
    """Closed there: the next at once. Open and silent: the next beside it."""
    half, good = ControlPlane(), ControlPlane()
    half.on["register"] = raw(ACCEPTED[:cut], hang) if silent else raw(ACCEPTED[:cut])
    head_start = 0.1 if silent else 600.0
    async with running(half, good):
        mine = link(tmp_path, half, good, settings=keys.Link(head_start=head_start))
        async with running(mine):
            passed = await until(
                mine,
                lambda status: status.state == "connected" or half.url in status.tried,
            )
            await connected(mine, good)

    if silent:
        assert passed.server == good.url  # and the half one had not been given up
    else:
        assert "no answer" not in passed.tried[half.url]


PING = chunk(b'{"t":"ping"}\n')
BEGUN = {
    "in the headers": HEAD,
    "after them": CHUNKED,
    "in a chunk's size": CHUNKED + b"5",
    "in the end of that line": CHUNKED + b"5a\r",
    "before a chunk's first byte": CHUNKED + b"5a\r\n",
    "in a key": CHUNKED + chunk(SNAPSHOT[:10]),
    "in a value": CHUNKED + chunk(SNAPSHOT[:30]),
    "in a chunk": CHUNKED + chunk(SNAPSHOT + b"\n")[:-30],
    "before the line's end": CHUNKED + chunk(SNAPSHOT),
    "between two chunks of a line": CHUNKED + chunk(SNAPSHOT[:30]) + chunk(b'"rev'),
    "before a chunk's own end": CHUNKED + PING[:-2],
    "in the end of a chunk": CHUNKED + PING[:-1],
    "between lines": CHUNKED + PING,
    "in the line after": CHUNKED + PING + chunk(SNAPSHOT[:-1]),
    "after an empty line": CHUNKED + chunk(b"\n"),
    "at an orderly end, half a line before": CHUNKED + chunk(SNAPSHOT) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("then", [hang, close])
@pytest.mark.parametrize("begin", BEGUN.values(), ids=BEGUN)
async def test_a_stream_that_stops_at_any_byte_stops_no_engine(
    tmp_path: Path, begin: bytes, then: Handler
) -> None:
    """3.6: and is left, after three intervals if it was not closed."""
    one, two = ControlPlane(epoch=1), ControlPlane(epoch=1)
    two.replicas = [A]
    async with running(one, two):
        mine = link(tmp_path, one, two)
        one.replicas = [A]
        async with running(mine):
            await wanted(mine, lambda desired: len(desired.wanted) == 1)
            await one.hears("heartbeat", 2)
            one.on["desired"] = raw(begin, then)
            for stream in tuple(one.streams):
                await stream.aclose()
            await one.hears("desired", 2)
            one.on["register"] = refuse(421, "not_leader")
            number = mine.desired.number
            await connected(mine, two)
            await wanted(mine, lambda _: mine.desired.number > number)
            desired = mine.desired.value

    # What it was before, and what the next one says: nothing was between.
    assert mine.desired.number == number + 1
    assert desired is not None
    assert len(desired.wanted) == 1


async def test_a_byte_at_a_time_is_no_sign_of_life(tmp_path: Path) -> None:
    """Slow-loris: whole lines count, not bytes."""
    slow, good = ControlPlane(), ControlPlane()
    slow.on["desired"] = drip(CHUNKED + chunk(SNAPSHOT + b"\n"), 0.05)
    async with running(slow, good):
        mine = link(tmp_path, slow, good)
        async with running(mine):
            await connected(mine, slow)
            slow.on["register"] = drip(ACCEPTED, 0.05)
            await connected(mine, good)
            desired = mine.desired.value

    assert desired is None or desired.rev != 9


async def test_an_answer_without_end_is_an_error(tmp_path: Path) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.stream.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n"
        )
        while True:
            await exchange.stream.send(b"x" * 65536)

    bad, good = ControlPlane(), ControlPlane()
    bad.on["register"] = flood
    async with running(bad, good):
        mine = link(tmp_path, bad, good, settings=keys.Link(head_start=5))
        async with running(mine):
            status = await connected(mine, good)

    assert status.server == good.url


async def test_headers_without_end_are_an_error(tmp_path: Path) -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.stream.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await exchange.stream.send(b"x-more: and more\r\n" * 1000)

    bad, good = ControlPlane(), ControlPlane()
    bad.on["register"] = flood
    async with running(bad, good):
        mine = link(tmp_path, bad, good, settings=keys.Link(head_start=5))
        async with running(mine):
            await connected(mine, good)


async def test_slow_answers_do_not_shift_the_beats(tmp_path: Path) -> None:
    """T17: each answer comes shortly before it would be too late.

    Beside a node whose answers come at once, on the same machine at the same time:
    counted from the last answer the beats would be little more than half as many.
    """
    slow, prompt = ControlPlane(), ControlPlane()

    async def late(exchange: Exchange) -> None:
        await anyio.sleep(0.18)
        await exchange.answer({"epoch": 1, "rev": 1})

    slow.on["heartbeat"] = late
    one, other = tmp_path / "one", tmp_path / "other"
    async with running(slow, prompt), running(link(one, slow), link(other, prompt)):
        await prompt.hears("heartbeat", 12)

    assert len(slow.heard("heartbeat")) >= 9
    assert len(slow.heard("register")) == 1


async def test_what_an_old_session_still_says_changes_nothing(tmp_path: Path) -> None:
    """3.5: its answer and its stream come when another is already there."""
    old, new = ControlPlane(epoch=1, lease_s=0.6), ControlPlane(epoch=1)
    new.replicas = [A]
    let_go = anyio.Event()

    async def late(exchange: Exchange) -> None:
        await let_go.wait()
        await exchange.answer({"epoch": 99, "rev": 1, "servers": ["http://a"]})

    async with running(old, new):
        mine = link(tmp_path, old, new)
        async with running(mine):
            await old.streaming()
            await old.hears("heartbeat")
            old.on["heartbeat"], old.standby = late, True
            await connected(mine, new)
            let_go.set()
            await new.hears("heartbeat", 3)
            status, desired = mine.status.value, mine.desired.value

    assert (status.epoch, status.server) == (1, new.url)
    assert desired is not None
    assert len(desired.wanted) == 1
    assert new.heard("heartbeat")[-1].json()["epoch"] == 1


async def test_what_was_wanted_is_known_before_any_control_plane(
    tmp_path: Path,
) -> None:
    """Section 4: a reboot without one starts what was wanted, and stops nothing."""
    one = ControlPlane(epoch=5)
    one.replicas = [A]
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await wanted(mine, lambda desired: not desired.kept)
            await one.hears("heartbeat", 2)  # and it is on disk
    mine = link(tmp_path, "http://127.0.0.1:1")
    async with running(mine):
        desired = await wanted(mine, lambda _: True)

    assert desired.kept
    assert [item.replica.id for item in desired.wanted] == ["a"]


async def test_a_bad_id_refuses_the_whole_snapshot_and_is_said(tmp_path: Path) -> None:
    one = ControlPlane()
    one.replicas = [A]
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await wanted(mine, lambda desired: len(desired.wanted) == 1)
            await one.push({**one.snapshot(rev=2), "replicas": [A, {**A, "id": "B!"}]})
            number = len(one.heard("heartbeat"))
            problems = (await one.hears("heartbeat", number + 2)).json()["problems"]
            kept = mine.desired.value
            await one.push({**one.snapshot(rev=3), "replicas": []})
            await wanted(mine, lambda desired: desired.rev == 3)
            left = {problem.code for problem in mine.problems()}

    assert kept is not None
    assert kept.rev == 1
    refused = [one for one in problems if one["code"] == "snapshot_refused"]
    assert "B!" in refused[0]["what"]
    assert "snapshot_refused" not in left


# The clock, the address, the machine -------------------------------------------------


async def test_a_clock_that_is_off_is_said_once_and_its_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T43: five seconds or more. Of logs only the number is looked at."""
    caplog.set_level(logging.INFO, "llmgw.session")
    one = ControlPlane()

    def dated(off: float) -> Handler:
        async def handler(exchange: Exchange) -> None:
            date = formatdate(time.time() + off, usegmt=True)
            await exchange.answer({"epoch": 1, "rev": 1}, date=date)

        return handler

    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            one.on["heartbeat"] = dated(-3)
            await one.hears("heartbeat", 3)
            little = {problem.code for problem in mine.problems()}
            one.on["heartbeat"] = dated(-600)
            await one.hears("heartbeat", len(one.heard("heartbeat")) + 3)
            (skew,) = (one for one in mine.problems() if one.code == "clock_skew")
            one.on["heartbeat"] = dated(0)
            await one.hears("heartbeat", len(one.heard("heartbeat")) + 3)
            codes = {problem.code for problem in mine.problems()}

    assert "ahead of" in skew.what
    assert "clock_skew" not in little | codes
    lines = [one.levelname for one in caplog.records if "clock_skew" in one.message]
    assert lines == ["WARNING", "INFO"]  # that it is so, and that it is over
    assert len(one.heard("register")) == 1


@pytest.mark.parametrize(
    "date",
    [
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Fri, 31 Dec 9999 23:59:59 -2300",
    ],
)
async def test_a_date_that_cannot_be_is_none(tmp_path: Path, date: str) -> None:
    """Read before all else in an answer, a refusal too: it ended the agent."""
    no, one = ControlPlane(), ControlPlane()
    no.on["register"] = raw(
        b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\ndate: %b\r\n\r\n" % date.encode()
    )
    one.on["register"] = raw(
        ACCEPTED.replace(b"\r\n", b"\r\ndate: %b\r\n" % date.encode(), 1)
    )
    async with running(no, one):
        mine = link(tmp_path, no, one)
        async with running(mine):
            status = await connected(mine, one)

    assert status.sessions == 1


@pytest.mark.parametrize("epoch", [2**63, 10**30, -1])
async def test_an_epoch_that_no_leader_can_have_locks_none_out(
    tmp_path: Path, epoch: int
) -> None:
    """Believed, it would refuse every real one, until a person comes."""
    liar, one = ControlPlane(), ControlPlane(epoch=4)
    liar.on["register"] = raw(response({"session": "s", "epoch": epoch, "lease_s": 15}))
    async with running(liar, one):
        mine = link(tmp_path, liar, one)
        async with running(mine):
            status = await connected(mine, one)

    assert status.epoch == 4


async def test_the_address_of_the_file_is_the_one_that_is_told(tmp_path: Path) -> None:
    """3.3; and nothing warns of loopback then (T35)."""
    one = ControlPlane()
    who = Identity(
        node_id="n1", version="1", mgmt_addr="10.9.9.9", mgmt_interface="bond0"
    )
    async with running(one):
        mine = link(tmp_path, one, identity=who)
        async with running(mine):
            register = (await one.hears("register")).json()
            await connected(mine)
            codes = {problem.code for problem in mine.problems()}

    assert register["mgmt_addr"] == "10.9.9.9"
    assert register["mgmt_interface"] == "bond0"
    assert codes == set()


async def test_loopback_is_kept_and_said(tmp_path: Path) -> None:
    """T35."""
    one = ControlPlane(host="::1")
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            status = await connected(mine)
            (problem,) = mine.problems()

    assert status.mgmt_addr == "::1"
    assert problem.code == "mgmt_addr_loopback"
    assert "mgmt_addr" in (problem.fix or "")


async def test_a_state_directory_of_another_machine_is_not_believed(
    tmp_path: Path,
) -> None:
    """T41: a disk image taken with it makes a new instance, and says so."""
    one = ControlPlane(epoch=3)
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
        clone = link(tmp_path, one, machine_id="m2")
        async with running(clone):
            await connected(clone)
            codes = {problem.code for problem in clone.problems()}
        again = link(tmp_path, one, machine_id="m2")
        async with running(again):
            await connected(again)

    first, second, third = (request.json() for request in one.heard("register"))
    assert first["instance"] != second["instance"] == third["instance"]
    assert first["machine_id_hash"] != second["machine_id_hash"]
    assert (first["epoch_seen"], second["epoch_seen"]) == (0, 0)
    assert "state_anew" in codes


async def test_the_instance_is_one_for_a_state_directory(tmp_path: Path) -> None:
    one = ControlPlane()
    async with running(one):
        for _ in range(2):
            mine = link(tmp_path, one)
            async with running(mine):
                await connected(mine)

    first, second = (request.json() for request in one.heard("register"))
    assert first["instance"] == second["instance"]


async def test_a_state_file_that_is_broken_is_begun_anew_and_said(
    tmp_path: Path,
) -> None:
    one = ControlPlane()
    mine = link(tmp_path, "http://127.0.0.1:1")
    path = anyio.Path(tmp_path / "state")
    await path.mkdir()
    await (path / "link.json").write_bytes(b'{"machine":"m","insta')
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            codes = {problem.code for problem in mine.problems()}

    assert "state_anew" in codes


async def test_a_disk_that_takes_nothing_keeps_no_node_away(tmp_path: Path) -> None:
    """And the epoch is remembered for as long as the agent lives."""
    one, old = ControlPlane(epoch=4), ControlPlane(epoch=3)
    await anyio.Path(tmp_path / "state").write_bytes(b"a file where a folder should be")
    old.on["register"] = lambda exchange: exchange.answer({"session": "x", "epoch": 3})
    async with running(one, old):
        mine = link(tmp_path, one, old)
        async with running(mine):
            await connected(mine, one)
            codes = {problem.code for problem in mine.problems()}
            one.die()
            await until(
                mine, lambda status: "stale leader" in status.tried.get(old.url, "")
            )

    assert "state_unwritable" in codes


# Names -------------------------------------------------------------------------------


async def test_a_dead_name_server_holds_up_nothing(tmp_path: Path) -> None:
    """T6: asked once at a time, however often it is tried; the next server is taken
    after the head start; and no thread is left to wait for at exit but one.
    """
    release = anyio.Event()
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        if host != "dead.example":
            return [host]
        asked.append(host)
        anyio.from_thread.run(release.wait, token=token)
        return []

    token = anyio.lowlevel.current_token()
    one = ControlPlane()
    async with running(one):
        mine = link(
            tmp_path,
            "http://dead.example",
            one,
            resolver=Resolver(lookup),
            settings=keys.Link(dial_timeout=0.2, head_start=0.05),
        )
        async with running(mine):
            await connected(mine, one)
            one.standby = True
            one.on["heartbeat"] = refuse(421, "not_leader")
            await one.hears("register", 5)
            tried = mine.status.value.tried["http://dead.example"]
        release.set()

    assert len(asked) == 1
    assert "finding its address" in tried


async def test_a_server_that_takes_no_connection_is_given_up_at_the_limit(
    tmp_path: Path,
) -> None:
    """3.1: connecting is bounded."""
    node = FakeNode()
    # TEST-NET-1: nobody answers, nobody refuses (or there is no route, at once).
    mine = link(
        tmp_path,
        "http://192.0.2.1:7",
        node=node,
        settings=keys.Link(dial_timeout=0.2),
    )
    async with running(mine, limit=5):
        status = await until(mine, lambda status: status.state == "disconnected")

    assert status.tried["http://192.0.2.1:7"]


async def test_a_password_in_an_address_is_sent_and_never_shown(
    tmp_path: Path,
) -> None:
    """C6."""
    one = ControlPlane()
    async with running(one):
        url = one.url.replace("127.0.0.1", "op:s%40cret@127.0.0.1")
        mine = link(tmp_path, url)
        async with running(mine):
            status = await connected(mine)
            register = await one.hears("register")

    assert register.headers["authorization"] == "Basic b3A6c0BjcmV0"
    assert "cret" not in repr(status)


async def test_the_kept_file_holds_what_is_promised(tmp_path: Path) -> None:
    one = ControlPlane(epoch=6)
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)

    def read() -> Kept:
        root = linked.machine(tmp_path / "root")
        return load(tmp_path / "state", machine(root).id_hash)[0]

    kept = await anyio.to_thread.run_sync(read)
    assert kept.epoch == 6
    assert kept.instance == one.heard("register")[0].json()["instance"]
