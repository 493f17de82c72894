"""Rules 3.2, 3.4, 3.8 to 3.11: which servers are tried, when, and who is believed."""

import gc
import logging
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from llmgw.aio import Latest
from llmgw.backoff import delays, jittered
from llmgw.config import keys
from llmgw.session.dial import Resolver
from llmgw.session.kept import Kept, load, machine, save
from llmgw.session.register import KEPT
from tests.fakes.control_plane import (
    Closed,
    ControlPlane,
    Exchange,
    hang,
    refuse,
    response,
)
from tests.fakes.linked import connected, link, running, until


async def remembered(tmp_path: Path) -> Kept:
    """In a thread: the loop is watched for reading files."""

    def read() -> Kept:
        return load(tmp_path / "state", machine(tmp_path / "root").id_hash)[0]

    return await anyio.to_thread.run_sync(read)


async def falls_to(count: Latest[int], wanted: int) -> None:
    number, value = await count.newer_than(-1)
    while value != wanted:
        number, value = await count.newer_than(number)


async def gone() -> ControlPlane:
    """One that was there: its port is closed now."""
    one = ControlPlane()
    async with running(one):
        pass
    return one


async def test_a_full_round_waits_and_each_wait_is_longer(tmp_path: Path) -> None:
    """3.2: and none longer than the longest, or the last would come in minutes."""
    one = ControlPlane()
    one.on["register"] = refuse(500, "oops")
    times: list[float] = []
    async with running(one):
        mine = link(tmp_path, one, base=0.05, limit=0.2, dice=lambda: 0.5)
        async with running(mine):
            for number in range(12):
                await one.hears("register", number + 1)
                times.append(anyio.current_time())

    waits = [after - before for before, after in pairwise(times)]
    for wait, delay in zip(waits, delays(0.05, 0.2), strict=False):
        assert wait >= jittered(delay, 0.5)


async def test_an_election_is_waited_for_in_short_steps(tmp_path: Path) -> None:
    """3.2: a standby's answer says that the network is well; and the one above it in
    the list, which is dead, does not make the waits longer."""
    one = ControlPlane(standby=True)
    times: list[float] = []
    async with running(one):
        mine = link(tmp_path, await gone(), one, base=0.1, limit=600, dice=lambda: 0.5)
        async with running(mine):
            for number in range(12):  # the last would come after three minutes
                await one.hears("register", number + 1)
                times.append(anyio.current_time())
            one.standby = False
            await connected(mine, one)

    waits = [after - before for before, after in pairwise(times)]
    assert all(wait >= 0.125 for wait in waits)


async def test_a_standby_is_asked_a_second_time_over_the_same_connection(
    tmp_path: Path,
) -> None:
    """And the third time it is dialled: its name may be another's by then."""
    one, two = ControlPlane(standby=True), ControlPlane(standby=True)
    dialled: list[int] = []
    async with running(one, two):
        mine = link(tmp_path, one, two, base=0.05)
        async with running(mine):
            for number in range(4):
                await two.hears("register", number + 1)
                dialled.append(two.connections)
            two.standby = False
            await connected(mine, two)
            await falls_to(one.open, 0)

    assert dialled == [1, 1, 2, 2]


async def test_a_standby_that_hung_up_meanwhile_is_dialled_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one = ControlPlane(standby=True)

    async def then_close(exchange: Exchange) -> None:
        await exchange.refuse(421, "not_leader")
        if one.connections == 1:
            raise Closed

    one.on["register"] = then_close
    async with running(one):
        mine = link(tmp_path, one, base=0.05)
        async with running(mine):
            await one.hears("register", 2)
            one.on.clear()
            one.standby = False
            await connected(mine, one)

    passed_over = [line for line in caplog.messages if "passed over" in line]
    assert len(passed_over) == 2
    assert all("not_leader" in line for line in passed_over)


async def test_a_standby_that_falls_silent_holds_up_a_round_no_longer_than_a_dead_one(
    tmp_path: Path,
) -> None:
    """Stopped, or gone with its machine, between the two times that it is asked."""
    one = ControlPlane(standby=True)

    async def fall_silent(exchange: Exchange) -> None:
        if len(one.heard("register")) == 1:
            return await exchange.refuse(421, "not_leader")
        return await hang(exchange)

    one.on["register"] = fall_silent
    settings = keys.Link(dial_timeout=0.3)
    async with running(one, limit=4):
        mine = link(tmp_path, one, base=0.05, settings=settings)
        async with running(mine):
            silent = "no answer in 0.3 s (/v1/register)"
            await until(mine, lambda status: silent in status.tried.get(one.url, ""))
            assert one.connections == 1
            one.on.clear()
            one.standby = False
            await connected(mine, one)


async def test_a_standby_whose_proxy_answered_for_it_meanwhile_is_dialled_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one says 408 to a connection that it ends; that is no word of the standby."""
    caplog.set_level(logging.DEBUG)
    one = ControlPlane(standby=True)

    async def then_time_out(exchange: Exchange) -> None:
        await exchange.refuse(421, "not_leader")
        await until(mine, lambda status: status.state == "disconnected")
        await exchange.stream.send(response(status=408, connection="close"))
        raise Closed

    one.on["register"] = then_time_out
    async with running(one):
        mine = link(tmp_path, one, base=0.05)
        async with running(mine):
            await one.hears("register")
            one.on.clear()
            one.standby = False
            await connected(mine, one)

    passed_over = [line for line in caplog.messages if "passed over" in line]
    assert len(passed_over) == 1
    assert "not_leader" in passed_over[0]


async def test_a_standby_that_asks_to_be_left_alone_is_let_go(tmp_path: Path) -> None:
    one, two = ControlPlane(), ControlPlane(standby=True)
    one.on["register"] = refuse(421, "not_leader", retry_after_s=600)
    async with running(one, two), running(link(tmp_path, one, two, base=0.05)):
        await two.hears("register", 3)
        await falls_to(one.open, 0)


async def test_a_standby_that_answers_more_than_it_was_asked_is_dialled(
    tmp_path: Path,
) -> None:
    """What it said too much is no answer to what it is asked then."""
    one = ControlPlane(standby=True)
    said = response({"code": "not_leader"}, 421)

    async def twice(exchange: Exchange) -> None:
        await exchange.stream.send(said + said)

    one.on["register"] = twice
    async with running(one):
        mine = link(tmp_path, one, base=0.05)
        async with running(mine):
            await one.hears("register")
            one.on.clear()
            one.standby = False
            await connected(mine, one)

    assert len(one.heard("register")) == 2


async def test_a_standby_that_is_not_asked_again_soon_is_let_go(tmp_path: Path) -> None:
    one = ControlPlane(standby=True)
    async with running(one):
        mine = link(tmp_path, one, base=KEPT, limit=600)
        async with running(mine):
            await one.hears("register")
            await falls_to(one.open, 0)


async def test_no_standby_is_held_by_an_agent_that_ended(tmp_path: Path) -> None:
    one = ControlPlane(standby=True)
    async with running(one):
        mine = link(tmp_path, one, base=KEPT / 2, limit=600)
        async with running(mine):
            await until(mine, lambda status: status.state == "disconnected")
            assert one.open.value == 1
        await falls_to(one.open, 0)


async def test_whoever_is_told_to_end_while_it_is_accepted_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    """At each step of the loop: what is left to the collector fails the test."""
    for steps in range(12):
        one, two = ControlPlane(standby=True), ControlPlane()
        accepts = anyio.Event()

        async def accept(exchange: Exchange) -> None:
            accepts.set()  # noqa: B023 -- of this step, as all that hears it
            await exchange.answer({"session": "s", "epoch": 1, "lease_s": 15.0})

        two.on["register"] = accept
        async with running(one, two):
            async with running(link(tmp_path, one, two)):
                await accepts.wait()
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
            gc.collect()
            await falls_to(one.open, 0)
            await falls_to(two.open, 0)


async def test_the_wait_begins_anew_after_a_session_that_worked(
    tmp_path: Path,
) -> None:
    """3.2; and a lost one is tried again at once."""
    one = ControlPlane()
    one.on["register"] = refuse(500, "oops")
    spread = [-1.0]  # of which nothing is left of a wait, however long it has become
    async with running(one):
        mine = link(tmp_path, one, base=0.02, limit=600.0, dice=lambda: spread[0])
        async with running(mine):
            await one.hears("register", 20)  # the next would be ten minutes
            del one.on["register"]
            await one.hears("heartbeat")
            spread[0] = 0.5
            one.on["register"] = refuse(500, "oops")
            one.on["heartbeat"] = refuse(421, "not_leader")
            tried = len(one.heard("register"))
            await one.hears("register", tried + 4)


async def test_one_that_accepts_and_lets_go_does_not_hide_the_next(
    tmp_path: Path,
) -> None:
    """A liar at the top of the list: accepted there for ever, and never served."""
    liar, good = ControlPlane(), ControlPlane()
    liar.on["heartbeat"] = refuse(404, "unknown_session")
    async with running(liar, good):
        mine = link(tmp_path, liar, good, base=5.0, limit=5.0)
        async with running(mine):
            await connected(mine, good)

    assert len(liar.heard("register")) == 1


async def test_a_single_server_is_tried_for_ever(tmp_path: Path) -> None:
    """T9, T3."""
    one = ControlPlane()
    one.on["register"] = refuse(503, "busy")
    async with running(one):
        mine = link(tmp_path, one, base=0.01, limit=0.05)
        async with running(mine):
            await one.hears("register", 5)
            del one.on["register"]
            await connected(mine)


async def test_who_is_busy_is_left_alone_for_as_long_as_it_said(
    tmp_path: Path,
) -> None:
    one, two = ControlPlane(), ControlPlane(standby=True)
    one.on["register"] = refuse(429, "busy", retry_after_s=0.5)
    async with running(one, two):
        mine = link(tmp_path, one, two, base=0.05, limit=0.05)
        async with running(mine):
            await one.hears("register")
            began = anyio.current_time()
            del one.on["register"]
            await connected(mine, one)

    assert anyio.current_time() - began >= 0.45
    assert len(two.heard("register")) > 3


@pytest.mark.parametrize("code", ["node_in_use", "identity_mismatch", "protocol"])
async def test_what_only_a_person_can_clear_up_is_said_and_tried_slowly(
    tmp_path: Path, code: str
) -> None:
    """Section 2, 3.10, T41: said in the status, and again at the cap."""
    one = ControlPlane()
    one.on["register"] = refuse(409, code)
    async with running(one):
        mine = link(tmp_path, one, base=0.01, limit=0.5, dice=lambda: 0.0)
        async with running(mine):
            await until(mine, lambda status: status.state == "disconnected")
            began = anyio.current_time()
            (problem,) = mine.problems()
            await one.hears("register", 2)
            waited = anyio.current_time() - began
            del one.on["register"]
            await connected(mine)
            left = {problem.code for problem in mine.problems()}

    assert (problem.code, problem.severity, problem.where) == (code, "error", one.url)
    assert problem.fix
    assert waited >= 0.24
    assert code not in left


async def test_a_hint_leads_to_a_configured_server_first(tmp_path: Path) -> None:
    """Section 2: 421 with a leader; never to one that nobody configured."""
    stranger, leader = ControlPlane(), ControlPlane()
    between = ControlPlane(standby=True)
    async with running(stranger, leader, between):
        for hint, tried in ((leader.url, 0), (stranger.url, 1)):
            asked = len(between.heard("register"))
            first = ControlPlane(
                standby=True, leader=hint.upper().replace("HTTP", "http")
            )
            async with running(first):
                mine = link(tmp_path, first, between, leader)
                async with running(mine):
                    await connected(mine, leader)

            assert len(between.heard("register")) - asked == tried
    assert stranger.connections == 0


async def test_a_goodbye_leads_on_at_once_to_the_one_it_names(tmp_path: Path) -> None:
    one, two, three = (ControlPlane() for _ in range(3))
    async with running(one, two, three):
        # Waits so long that one would be seen.
        mine = link(tmp_path, one, two, three, base=600.0, limit=600.0)
        async with running(mine):
            await connected(mine, one)
            await one.hears("heartbeat")
            one.on["register"] = refuse(421, "not_leader")
            await one.push({"t": "bye", "reason": "not_leader", "leader": three.url})
            await connected(mine, three)

    assert two.connections == 0


async def test_the_same_control_plane_comes_back_on_another_port(
    tmp_path: Path,
) -> None:
    """T11, T3: a new session, and what runs goes up with it."""
    one, two = ControlPlane(epoch=1), ControlPlane(epoch=2)
    async with running(one, two):
        mine = link(tmp_path, one, two)
        async with running(mine):
            before = await connected(mine, one)
            one.die()
            after = await connected(mine, two)

    assert before.session != after.session


# Epochs ------------------------------------------------------------------------------


async def test_of_two_leaders_the_higher_epoch_wins(tmp_path: Path) -> None:
    """3.4: the lower one is first in the list and says so itself, once told."""
    old, new = ControlPlane(epoch=3), ControlPlane(epoch=4)
    async with running(old, new):
        mine = link(tmp_path, old, new)
        async with running(mine):
            await connected(mine, old)
            old.on["heartbeat"] = refuse(421, "not_leader")
            with old.told("register", refuse(421, "not_leader")):
                await connected(mine, new)
            new.die()
            status = await until(
                mine, lambda status: "stale_epoch" in status.tried.get(old.url, "")
            )
            codes = {problem.code: problem for problem in mine.problems()}

    assert status.state != "connected"
    fix = codes["stale_epoch"].fix or ""
    assert "forget-epoch" in fix
    assert "--epoch-floor 5;" in fix


async def test_forgetting_the_epoch_lets_a_rebuilt_control_plane_in(
    tmp_path: Path,
) -> None:
    """3.4."""
    old, rebuilt = ControlPlane(epoch=40), ControlPlane(epoch=1)
    async with running(old, rebuilt):
        mine = link(tmp_path, old, rebuilt)
        async with running(mine):
            await connected(mine, old)
            old.die()
            await until(mine, lambda status: status.state == "disconnected")
            await mine.forget_epoch()
            await connected(mine, rebuilt)
            codes = {problem.code for problem in mine.problems()}

    assert "stale_epoch" not in codes
    assert (await remembered(tmp_path)).epoch == 1


async def test_an_ack_of_a_lower_epoch_ends_the_session(tmp_path: Path) -> None:
    one, two = ControlPlane(epoch=5), ControlPlane(epoch=5)
    async with running(one, two):
        mine = link(tmp_path, one, two)
        async with running(mine):
            await connected(mine, one)
            one.on["heartbeat"] = lambda exchange: exchange.answer(
                {"epoch": 4, "rev": 1}
            )
            one.on["register"] = refuse(421, "not_leader")
            await connected(mine, two)


# Servers it was told of --------------------------------------------------------------


async def test_learned_servers_are_followed_also_after_a_restart(
    tmp_path: Path,
) -> None:
    """T4: all servers replaced by new addresses."""
    old, new = ControlPlane(epoch=1), ControlPlane(epoch=2)
    async with running(new):
        async with running(old):
            old.servers = [new.url]
            mine = link(tmp_path, old)
            async with running(mine):
                await connected(mine, old)
                old.die()
                await connected(mine, new)
        mine = link(tmp_path, old)
        async with running(mine):
            await connected(mine, new)


async def test_a_list_of_dead_ones_does_not_hide_the_configured_and_is_dropped(
    tmp_path: Path,
) -> None:
    """T5, T7."""
    dead, one = await gone(), ControlPlane()
    async with running(one):
        mine = link(tmp_path, await gone(), one)
        stale = Kept(
            machine=(await remembered(tmp_path)).machine,
            instance="i",
            servers=(dead.url,),
        )
        await anyio.to_thread.run_sync(save, tmp_path / "state", stale)
        one.standby = True
        async with running(mine):
            await one.hears("register", 2)
            assert (await remembered(tmp_path)).servers == (dead.url,)

            one.standby = False
            await connected(mine, one)
            await one.hears("heartbeat")

    kept = await remembered(tmp_path)
    assert (kept.servers, kept.instance) == ((), "i")


async def test_without_anybody_left_a_learned_one_is_not_forgotten(
    tmp_path: Path,
) -> None:
    """All of them restart at once, those of the file long gone."""
    new = ControlPlane(epoch=2)
    async with running(new):
        old = ControlPlane(epoch=1)
        async with running(old):
            old.servers = [new.url]
            mine = link(tmp_path, old)
            async with running(mine):
                await connected(mine, old)
                await old.hears("heartbeat")
    again = ControlPlane(epoch=3, port=new.port)
    mine = link(tmp_path, old)
    async with running(mine):
        await until(mine, lambda status: new.url in status.tried)
        await until(mine, lambda status: status.state == "disconnected")
        async with running(again):
            await connected(mine, again)


# Back to an earlier one --------------------------------------------------------------


async def test_it_goes_back_to_an_earlier_server_that_leads(tmp_path: Path) -> None:
    """3.9: only if its epoch is at least as high."""
    first, second = ControlPlane(epoch=1, standby=True), ControlPlane(epoch=2)
    async with running(first, second):
        mine = link(tmp_path, first, second, settings=keys.Link(fail_back_interval=0.1))
        async with running(mine):
            await connected(mine, second)
            first.standby = False
            await first.hears("leader", 3)
            stayed = mine.status.value.server
            first.epoch = 2
            await connected(mine, first)

    assert stayed == second.url


async def test_with_zero_it_never_looks_back(tmp_path: Path) -> None:
    first, second = ControlPlane(standby=True), ControlPlane()
    async with running(first, second):
        mine = link(tmp_path, first, second, settings=keys.Link(fail_back_interval=0))
        async with running(mine):
            await second.hears("heartbeat", 4)

    assert first.heard("leader") == []


# Names and proxies -------------------------------------------------------------------


async def test_names_are_resolved_anew_until_they_can_be(tmp_path: Path) -> None:
    """T6: three failures, then an answer; each attempt asks again."""
    one = ControlPlane()
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        if len(asked) <= 3:
            raise OSError(-3, "Temporary failure in name resolution")
        return ["127.0.0.1"]

    async with running(one):
        url = one.url.replace("127.0.0.1", "cp.example")
        mine = link(tmp_path, url, base=0.02, resolver=Resolver(lookup))
        async with running(mine):
            refused = await until(mine, lambda status: url in status.tried)
            await connected(mine)
            await one.hears("heartbeat")

    assert "the name cp.example cannot be resolved: Temporary" in refused.tried[url]
    assert len(asked) >= 4


async def test_proxy_variables_are_not_for_this_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T34."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    one = ControlPlane()
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            await one.hears("heartbeat")


async def test_a_learned_address_that_is_none_does_no_harm(tmp_path: Path) -> None:
    one = ControlPlane()
    one.servers = ["ftp://x", "http://", "http://[::", "http://x:99999", "", "http://a"]
    async with running(one):
        mine = link(tmp_path, one)
        async with running(mine):
            await connected(mine)
            await one.hears("heartbeat")

    assert (await remembered(tmp_path)).servers == ("http://a",)
