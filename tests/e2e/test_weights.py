"""Weights on their way to a whole agent: what is told, and what else goes on."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.fleet import Fleet, llmgw, until
from tests.fakes import disks
from tests.fakes.ports import free_port
from tests.fakes.weights_server import WeightsServer

MIB = 1024 * 1024


def replica(name: str, source: str = "") -> dict[str, Any]:
    want: dict[str, Any] = {"id": name, "generation": 1, "engine": "command"}
    if source:
        want["model"] = {"name": name, "source": source}
    return want


def states(fleet: Fleet) -> dict[str, dict[str, Any]]:
    status = fleet.status() or {"replicas": []}
    return {one["id"]: one for one in status["replicas"]}


def test_of_two_that_fit_one_at_a_time_the_second_waits_and_comes_when_there_is_room(
    fleet: Fleet,
) -> None:
    """T72: it was tried for 16 minutes and failed; here no byte of it is asked for."""
    with disks.small(fleet.folder / "cache", 24) as cache, WeightsServer() as server:
        port = free_port()
        for number, name in enumerate("ab"):
            content = random.Random(number).randbytes(14 * MIB)
            server.put(f"/{name}", content).rate = 2 * MIB
        fleet.control("cp1", port, "leader 1")
        extra = f'weights_cache = "{cache}"\n' + fleet.engine_file()
        fleet.write(f"http://127.0.0.1:{port}", extra=extra)
        fleet.want(*(replica(name, server.url(f"/{name}")) for name in "ab"))
        fleet.agent()

        waits = until(lambda: waiting(fleet), "one waits for room", more=fleet.logs)
        first = "b" if waits["id"] == "a" else "a"
        told = waits["progress"]["what"]
        fleet.replica("ready", first)
        second = str(waits["id"])
        until(
            lambda: "are needed" in reason(fleet, second),
            "it is told what it is short of",
            more=fleet.logs,
        )
        why = reason(fleet, second)
        sent = server.sent(f"/{second}")
        server.files[f"/{second}"].rate = None
        fleet.want(replica(second, server.url(f"/{second}")))
        until(
            lambda: evicted(fleet, server.url(f"/{first}")), "evicted", more=fleet.logs
        )
        fleet.replica("ready", second)

    form = r"waiting for [\d.]+ MiB of disk, beside 1 other fetches"
    assert re.fullmatch(form, told)
    # What there is, a replica uses: no command is named that would be refused.
    assert "nothing in the cache is unused" in why
    assert sent <= 1


def waiting(fleet: Fleet) -> dict[str, Any] | None:
    for one in states(fleet).values():
        if one.get("progress", {}).get("what", "").startswith("waiting for"):
            return one
    return None


def reason(fleet: Fleet, name: str) -> str:
    return states(fleet).get(name, {}).get("reason") or ""


def evicted(fleet: Fleet, source: str) -> bool:
    """Whether it could be removed: not while a replica uses it."""
    file = fleet.folder / "agent.toml"
    words = llmgw("weights", "--config", file, "evict", source)
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("is_stuck", [False, True], ids=["slow", "stuck"])
def test_while_weights_come_the_node_is_heard_answers_and_starts_what_needs_none(
    fleet: Fleet, is_stuck: bool
) -> None:
    """T76: a fetch that goes on for minutes, and one whose process does nothing."""
    big = fleet.folder / "big.gguf"
    with big.open("wb") as file:
        file.truncate(2048 * MIB)
    port = free_port()
    options = ("--heartbeat-s", "1", "--admin-token-file", fleet.folder / "token")
    fleet.control("cp1", port, "leader 1", *options)
    extra = f'weights_cache = "{fleet.folder}/cache"\n' + fleet.engine_file()
    extra += '[weights]\nrate_limit = "16MiB"\n'
    fleet.write(f"http://127.0.0.1:{port}", extra=extra)
    slow = replica("slow", f"file://{big}")
    fleet.want(slow)
    agent = fleet.agent()
    until(
        lambda: (states(fleet).get("slow") or {}).get("progress"),
        "it comes",
        more=fleet.logs,
    )
    before = session(fleet, port)
    slowest = 0.0

    def heard() -> bool:
        nonlocal slowest
        began = time.monotonic()
        assert fleet.status()
        slowest = max(slowest, time.monotonic() - began)
        return session(fleet, port)["heartbeats"] >= before["heartbeats"] + 4

    with stopped(fetcher(agent.pid)) if is_stuck else nullcontext():
        fleet.want(slow, replica("other"))
        fleet.replica("ready", "other")
        until(heard, "four heartbeats are heard", more=fleet.logs)
        fleet.want(slow)
        fleet.replica("stopped", "other")
        after = states(fleet)["slow"]
    fleet.want()
    fleet.replica("stopped", "slow")

    assert session(fleet, port)["session"] == before["session"]
    assert after["state"] == "fetching"
    assert after["progress"]["done"] < 1024 * MIB
    assert slowest < 1


def session(fleet: Fleet, port: int) -> dict[str, Any]:
    """What the control plane has of the only node."""
    token = (fleet.folder / "token").read_text().strip()
    with httpx.Client(trust_env=False) as client:
        answer = client.get(
            f"http://127.0.0.1:{port}/v1/admin/sessions",
            headers={"Authorization": f"Bearer {token}"},
        )
    (one,) = answer.raise_for_status().json()["sessions"]
    return one


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """It does nothing at all for as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def fetcher(agent: int) -> int:
    """The fetch process of that agent."""
    (one,) = (
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if is_fetcher(folder, agent)
    )
    return one


def is_fetcher(folder: Path, agent: int) -> bool:
    try:
        parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        is_one = b"llmgw.weights.child" in (folder / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return is_one and int(parent) == agent


def test_of_a_fetch_that_nobody_wants_any_more_nothing_is_told(fleet: Fleet) -> None:
    """A stopped replica was to be `asked again in 12 s` for as long as it was shown."""
    port = free_port()
    fleet.control("cp1", port, "leader 1")
    fleet.write(f"http://127.0.0.1:{port}", extra=fleet.engine_file())
    fleet.want(replica("a", f"http://127.0.0.1:{free_port()}/nobody"))
    fleet.agent()
    until(
        lambda: "asked again" in str(states(fleet).get("a", {}).get("progress")),
        "it waits for a server that is not there",
        more=fleet.logs,
    )
    waits = fleet.text()

    fleet.want()
    stopped = fleet.replica("stopped")

    assert re.search(
        r"a fetching \(fetching, asked again[^)]*\(\w[^)]*\)\)$", waits, re.MULTILINE
    )
    assert stopped.get("progress") is None
    until(lambda: (fleet.status() or {}).get("fetching") == {}, "the fetch has ended")
