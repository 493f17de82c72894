"""A control plane rebuilt from nothing: what is said to be done about it is enough."""

import re
import subprocess

import pytest

from llmgw.agent.door import ask_once
from tests.e2e.fleet import Fleet, Program, llmgw, until
from tests.fakes.ports import free_port

SEEN = 50


def leader(fleet: Fleet, port: int, state: str, *options: str) -> Program:
    arguments = ["control", "--listen", f"127.0.0.1:{port}", "--role", "leader"]
    arguments += ["--state-dir", str(fleet.folder / state), *options]
    return fleet.start("control.log", arguments)


def fix(fleet: Fleet) -> str:
    problems = (fleet.status() or {"problems": []})["problems"]
    return next((one["fix"] for one in problems if one["code"] == "stale_epoch"), "")


@pytest.mark.parametrize("way", ["the floor", "forgetting"])
def test_what_is_said_of_a_control_plane_made_anew_is_true(
    fleet: Fleet, way: str
) -> None:
    """3.4: who forgot the epoch waited for a leader that had stepped down; and the two
    sides named two numbers.
    """
    port = free_port()
    first = leader(fleet, port, "old", "--epoch-floor", str(SEEN))
    fleet.write(f"http://127.0.0.1:{port}")
    fleet.agent()
    fleet.connected(port)
    first.kill()
    anew = leader(fleet, port, "new")
    told = until(lambda: fix(fleet), "the epoch is said", more=fleet.logs)
    config = fleet.folder / "agent.toml"
    words = llmgw("doctor", config, "--socket", fleet.socket)
    doctor = subprocess.run(words, capture_output=True, text=True, check=False)

    (floor,) = re.findall(r"start it again with --epoch-floor (\d+);", told)
    assert "forget-epoch` on every node, and then start it again" in told
    assert f"--epoch-floor {floor}'" in anew.said
    assert doctor.returncode == 1
    (line,) = (one for one in doctor.stdout.splitlines() if "has seen" in one)
    assert line.startswith("FAULT  ")
    assert f"seen {SEEN}" in line
    assert f"fix: {told}" in doctor.stdout
    assert "no control plane of the list leads" not in doctor.stdout  # one cause

    if way == "forgetting":
        assert ask_once(fleet.socket, "forget_epoch")
    anew.kill()
    options = ["--epoch-floor", floor] if way == "the floor" else []
    leader(fleet, port, "new", *options)

    fleet.connected(port)
    assert not fix(fleet)
