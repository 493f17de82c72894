"""Faults of a real network, in namespaces: what each does to the link."""

from pathlib import Path

import anyio
import pytest

from tests.fakes.control_plane import Exchange
from tests.fakes.hosts import Host, hosts
from tests.fakes.linked import running
from tests.fakes.wired import BEAT, A, control_plane, node_on

pytestmark = pytest.mark.usefixtures("namespaces")


async def test_a_black_hole_is_left_within_three_pings(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    """T2: packets vanish, nothing is ever refused; and nothing is unwanted by it.

    How long it takes is for tests/bench/link.py: here it is what it waited for.
    """
    node, beyond = wired
    one, two = (control_plane(beyond, f"10.77.0.{last}") for last in (1, 2))
    async with (
        running(one, two, limit=20),
        node_on(node, tmp_path, one.url, two.url) as mine,
    ):
        await mine.until(state="connected", server=one.url)
        await one.hears("heartbeat", 3)
        await one.streaming()
        beyond.filter("ip daddr 10.77.0.1 drop")
        lost = await mine.until(state="connecting")
        await mine.until(server=two.url)
        assert mine.last["wanted"] == 1

    # The stream's own silence, and not a heartbeat, a dial or the kernel giving up.
    assert f"no answer in {3 * BEAT:g} s (the stream)" in lost["tried"][one.url]


async def test_a_reset_leads_on_at_once(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    node, beyond = wired
    one, two = (control_plane(beyond, f"10.77.0.{last}") for last in (1, 2))
    async with (
        running(one, two, limit=20),
        node_on(node, tmp_path, one.url, two.url) as mine,
    ):
        await mine.until(state="connected", server=one.url)
        await one.hears("heartbeat", 3)
        beyond.filter("ip daddr 10.77.0.1 meta l4proto tcp reject with tcp reset")
        lost = await mine.until(state="connecting")
        await mine.until(server=two.url)

    # At the next thing that is said, and not once something had been waited for.
    assert "no answer" not in lost["tried"][one.url]


async def test_a_cable_that_is_out_for_a_while_changes_nothing_but_the_link(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    """T16, T23: disconnected is shown, what was wanted stays, news come after it."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        await mine.until(state="connected", wanted=1)
        beyond.ip("link set mgmt0 down")
        down = await mine.until(state="disconnected")
        assert down["wanted"] == 1
        one.replicas = [A, {**A, "id": "b"}]
        one.rev = 2
        beyond.ip("link set mgmt0 up")
        await mine.until(state="connected", wanted=2)

    assert one.heard("register")[-1].json()["epoch_seen"] == 1


async def test_a_nic_that_comes_late_is_waited_for(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    node, beyond = wired
    node.ip("address del 10.77.0.9/24 dev mgmt0")
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        none = await mine.until(state="disconnected")
        node.ip("address add 10.77.0.9/24 dev mgmt0")
        await mine.until(state="connected", mgmt_addr="10.77.0.9")

    assert "network is unreachable" in none["tried"][one.url]


@pytest.mark.parametrize("zoned", [False, True])
async def test_a_host_with_nothing_but_ipv6(tmp_path: Path, zoned: bool) -> None:
    """T28, T29: a global address, and a link-local one that is nothing without zone."""
    with hosts("mgmt0", "other0") as (node, beyond):
        if zoned:
            node.ip("address add fe80::9/64 dev mgmt0 nodad")
            beyond.ip("address add fe80::1/64 dev mgmt0 nodad")
            # The same address on another NIC: only the zone tells them apart.
            node.ip("address add fe80::9/64 dev other0 nodad")
            one = control_plane(beyond, "fe80::1%mgmt0")
            url = f"http://[fe80::1%25mgmt0]:{one.port}"
        else:
            node.ip("address add fd77::9/64 dev mgmt0 nodad")
            beyond.ip("address add fd77::1/64 dev mgmt0 nodad")
            one = control_plane(beyond, "fd77::1")
            url = one.url
        async with running(one, limit=20), node_on(node, tmp_path, url) as mine:
            status = await mine.until(state="connected", wanted=1)
            register = await one.hears("register")

    assert status["mgmt_addr"] == ("fe80::9" if zoned else "fd77::9")
    assert status["mgmt_interface"] == "mgmt0"
    host = "[fe80::1]" if zoned else "[fd77::1]"
    assert register.headers["host"] == f"{host}:{one.port}"


async def test_the_address_is_that_of_the_nic_the_route_takes(tmp_path: Path) -> None:
    """T25: two NICs, and the control plane behind the second."""
    with hosts("data0", "mgmt0") as (node, beyond):
        node.ip("address add 10.66.0.9/24 dev data0")
        node.ip("address add 10.77.0.9/24 dev mgmt0")
        beyond.ip("address add 10.77.0.1/24 dev mgmt0")
        one = control_plane(beyond, "10.77.0.1")
        async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
            status = await mine.until(state="connected")

    assert (status["mgmt_addr"], status["mgmt_interface"]) == ("10.77.0.9", "mgmt0")


async def test_another_address_is_told_by_registering_again_once_it_stays(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    """3.3: and the old one still works, so that nothing else would tell."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        await mine.until(state="connected", wanted=1)
        node.ip("address add 10.77.0.10/32 dev mgmt0")
        route = "route replace 10.77.0.0/24 dev mgmt0 src"
        began = anyio.current_time()
        node.ip(f"{route} 10.77.0.10")
        await mine.until(mgmt_addr="10.77.0.10")
        took = anyio.current_time() - began
        assert mine.last["wanted"] == 1

    assert len(one.heard("register")) == 2
    assert took >= 2 * BEAT  # seen again and again, before it was believed


async def test_a_standby_is_asked_again_from_the_address_of_now(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    """The connection to it, kept for that, is from another and still works."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")

    async def refuse_and_change(exchange: Exchange) -> None:
        node.ip("address add 10.77.0.10/32 dev mgmt0")
        node.ip("route replace 10.77.0.0/24 dev mgmt0 src 10.77.0.10")
        one.on.clear()
        await exchange.refuse(421, "not_leader")

    one.on["register"] = refuse_and_change
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        await mine.until(state="connected")

    said = [request.json()["mgmt_addr"] for request in one.heard("register")]
    assert said == ["10.77.0.9", "10.77.0.10"]


async def test_a_nic_with_another_name_is_told_by_registering_again(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        await mine.until(state="connected", mgmt_interface="mgmt0")
        node.ip("link set mgmt0 name ens3")
        await mine.until(mgmt_interface="ens3")

    assert one.heard("register")[-1].json()["mgmt_interface"] == "ens3"


async def test_an_address_that_flaps_is_not_believed(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    """3.3: readings must be stable."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=20), node_on(node, tmp_path, one.url) as mine:
        await mine.until(state="connected")
        node.ip("address add 10.77.0.10/32 dev mgmt0")
        for last in (10, 9, 10, 9, 10, 9):
            node.ip(f"route replace 10.77.0.0/24 dev mgmt0 src 10.77.0.{last}")
            await one.hears("heartbeat", len(one.heard("heartbeat")) + 1)
        await one.hears("heartbeat", len(one.heard("heartbeat")) + 4)

    assert len(one.heard("register")) == 1


async def test_a_third_of_all_packets_lost_is_slow_and_nothing_else(
    tmp_path: Path, wired: tuple[Host, Host]
) -> None:
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with running(one, limit=30), node_on(node, tmp_path, one.url) as mine:
        beyond.filter("numgen random mod 100 < 33 drop")
        await mine.until(state="connected")
        beyond.heal()
        await one.hears("heartbeat", len(one.heard("heartbeat")) + 2)
        await mine.until(state="connected", wanted=1)


@pytest.mark.parametrize(
    "queue", ["netem delay 250ms 50ms", "tbf rate 96kbit burst 2kb latency 2s"]
)
async def test_a_line_that_is_slow_is_slow_and_nothing_else(
    tmp_path: Path, wired: tuple[Host, Host], queue: str
) -> None:
    """Both servers answer after the head start: one session, and it stays."""
    node, beyond = wired
    try:
        beyond.run("tc", *f"qdisc add dev mgmt0 root {queue}".split())
    except AssertionError:
        pytest.skip(f"needs a kernel with sch_{queue.split()[0]}: modprobe it")
    one, two = (control_plane(beyond, f"10.77.0.{last}") for last in (1, 2))
    async with (
        running(one, two, limit=30),
        node_on(node, tmp_path, one.url, two.url) as mine,
    ):
        status = await mine.until(state="connected")
        held = one if status["server"] == one.url else two
        await held.hears("heartbeat", 5)
        await mine.until(wanted=1)

    assert mine.last["sessions"] == 1
