"""Rate, quiet hours, connections and waits: what is decided without doing anything."""

import time
from collections.abc import Callable

import pytest

from llmgw.weights.budget import Budget, Quiet
from llmgw.weights.faults import Again
from llmgw.weights.proxies import proxy_for
from llmgw.weights.waiting import patiently, wait_after
from llmgw.weights.width import Seen, Width


def settled(
    rate: Callable[[int], float], limit: int = 16, hash_rate: float = 1e12
) -> int:
    """The connections a link of this *rate* (bytes a second by connections) gets."""
    width, came, hashed, busy, at = Width(limit), 0.0, 0.0, 0.0, 0.0
    for _ in range(40):
        came += rate(width.now) * 0.31
        more = min(came - hashed, hash_rate * 0.31)
        hashed, busy = hashed + more, busy + more / hash_rate
        at += 0.31
        width.saw(Seen(came=int(came), hashed=int(hashed), busy=busy), at)
    return width.now


def test_a_far_server_gets_all_the_connections_there_may_be() -> None:
    assert settled(lambda connections: connections * 1e7) == 16
    assert settled(lambda connections: connections * 1e7, limit=5) == 5


def test_a_near_server_gets_few() -> None:
    assert settled(lambda connections: 1e9) <= 2
    assert settled(lambda connections: 1e9 / connections) <= 2


def test_more_than_the_hash_can_take_does_not_pay() -> None:
    assert settled(lambda connections: connections * 1e9, hash_rate=1.2e9) <= 2


def test_a_budget_asks_for_the_time_the_bytes_should_have_taken() -> None:
    now = 0.0
    budget = Budget(1000, clock=lambda: now)

    waits = [budget.take(500) for _ in range(4)]
    now = 100.0

    assert waits == pytest.approx([0.4, 0.9, 1.4, 1.9], abs=0.11)
    assert budget.take(500) == pytest.approx(0.4)
    assert Budget(None).take(10**9) == 0


@pytest.mark.parametrize(
    ("hours", "at", "quiet"),
    [
        ("08:00-18:00", "07:59", False),
        ("08:00-18:00", "08:00", True),
        ("08:00-18:00", "18:00", False),
        ("22:00-06:00", "23:30", True),
        ("22:00-06:00", "05:59", True),
        ("22:00-06:00", "12:00", False),
    ],
)
def test_quiet_hours_may_pass_midnight(hours: str, at: str, quiet: bool) -> None:
    now = time.strptime(at, "%H:%M")

    assert Quiet(hours, clock=lambda: now).holds() is quiet


def test_it_is_asked_again_with_longer_waits_and_not_for_ever() -> None:
    waited: list[float] = []
    why: set[str] = set()

    def ask() -> None:
        raise Again("no")

    def rest(seconds: float, reason: str) -> None:
        waited.append(seconds)
        why.add(reason)

    with pytest.raises(Again):
        patiently(ask, rest, attempts=5)

    assert why == {"no"}
    assert waited[0] == 0  # the first break is answered at once
    assert 0.5 <= waited[1] < 1 <= waited[2] < 2 <= waited[3] < 4
    assert len(waited) == 4
    assert wait_after(1, 7.0) == 7.0


@pytest.mark.parametrize(
    ("url", "environ", "through"),
    [
        ("https://hub.example/x", {"https_proxy": "http://p:3128"}, "p"),
        ("https://hub.example/x", {"HTTPS_PROXY": "p:3128"}, "p"),
        ("http://hub.example/x", {"https_proxy": "http://p:3128"}, None),
        (
            "https://10.1.2.3/x",
            {"all_proxy": "http://p", "no_proxy": "10.0.0.0/8"},
            None,
        ),
        (
            "https://11.1.2.3/x",
            {"all_proxy": "http://p", "no_proxy": "10.0.0.0/8"},
            "p",
        ),
        ("https://a.corp/x", {"all_proxy": "http://p", "NO_PROXY": ".corp"}, None),
        ("https://a.corp:8/x", {"all_proxy": "http://p", "NO_PROXY": "corp:9"}, "p"),
        ("https://acorp/x", {"all_proxy": "http://p", "NO_PROXY": "corp"}, "p"),
        (
            "https://[fd00::2]/x",
            {"all_proxy": "http://p", "no_proxy": "fd00::/8"},
            None,
        ),
        ("http://127.0.0.1:8/x", {"all_proxy": "http://p"}, None),
        ("https://a/x", {"all_proxy": "http://p", "no_proxy": "*"}, None),
    ],
)
def test_proxies_are_the_environment_s_networks_and_all(
    url: str, environ: dict[str, str], through: str | None
) -> None:
    """T34: a network in NO_PROXY is one, and loopback never goes through a proxy."""
    proxy = proxy_for(url, environ)

    assert (proxy.hostname if proxy else None) == through
