"""What a person on the node does, and what a restart or a reboot makes of it."""

import os
import signal
import socket
import subprocess

import httpx
import pytest

from llmgw.agent.door import ask
from llmgw.errors import LlmgwError
from tests.e2e.fleet import Fleet, Program, alive, until
from tests.fakes.ports import free_port


def file_of(fleet: Fleet, port: int, extra: str = "", supervisor: str = "") -> None:
    extra = fleet.engine_file() + extra
    fleet.write(f"http://127.0.0.1:{port}", extra=extra, supervisor=supervisor)


def replica(name: str = "a", generation: int = 1) -> dict[str, object]:
    return {"id": name, "generation": generation, "engine": "command"}


def at_work(fleet: Fleet, port: int) -> tuple[Program, int]:
    """An agent, and the engine that it runs."""
    file_of(fleet, port)
    fleet.want(replica())
    agent = fleet.agent()
    return agent, fleet.replica("ready")["pid"]


@pytest.fixture
def port(fleet: Fleet) -> int:
    found = free_port()
    fleet.control("cp1", found, "leader 1")
    return found


def test_a_drained_node_starts_nothing_also_after_a_restart(
    fleet: Fleet, port: int
) -> None:
    """T60."""
    file_of(fleet, port)
    agent = fleet.agent()
    fleet.connected(port)
    list(ask(fleet.socket, "drain"))
    agent.kill()
    fleet.want(replica())
    fleet.agent()
    fleet.connected(port)
    until(lambda: (fleet.status() or {}).get("rev_applied"), "the wish is known")
    status = fleet.status() or {}

    assert status["draining"]
    assert status["replicas"] == []
    list(ask(fleet.socket, "undrain"))
    assert fleet.replica("ready")


def test_a_drain_ends_at_its_limit(fleet: Fleet, port: int) -> None:
    """T18."""
    file_of(fleet, port)
    fleet.want(replica())
    fleet.agent()
    pid = fleet.replica("ready")["pid"]

    before = fleet.text("plan")
    list(ask(fleet.socket, "drain", stop_after=0.2))

    fleet.replica("stopped")
    assert not alive(pid)
    assert before == "keep   a\n"
    assert "held      a: is wanted and this node drains\n" in fleet.text()
    drained = "hold   a: is wanted and this node drains\n"
    assert fleet.text("plan") == f"{drained}       `llmgw undrain` ends it\n"


def test_what_the_control_plane_drains_a_person_undrains(fleet: Fleet) -> None:
    port = free_port()
    (fleet.folder / "desired.json").write_text("{}")
    fleet.control("cp1", port, "leader 1", "--admin-token-file", fleet.folder / "token")
    file_of(fleet, port)
    fleet.agent()
    fleet.connected(port)
    fleet.put(port, {"replicas": [replica()], "drain": True})
    until(lambda: (fleet.status() or {})["draining"], "it drains")
    said = fleet.text()
    before = (fleet.status() or {})["replicas"]

    undrained = fleet.text("undrain")

    assert fleet.replica("ready")
    assert before == []
    assert "draining  the control plane wants it: nothing new is started" in said
    assert "the control plane still wants this node drained" in undrained
    assert "was not draining" in fleet.text("undrain")
    assert (fleet.status() or {})["drain"] is None
    fleet.put(port, {"replicas": [replica()], "drain": False})
    until(lambda: not (fleet.folder / "state/undrained.json").exists(), "it is heeded")
    fleet.put(port, {"replicas": [replica()], "drain": True})
    until(lambda: (fleet.status() or {})["draining"], "it drains anew")


def test_a_leader_that_is_gone_and_back_finds_the_engine_as_it_was(
    fleet: Fleet,
) -> None:
    """T3, T16: `disconnected` is shown; a new session, and nothing was restarted."""
    port = free_port()
    leader = fleet.control("cp1", port, "leader 1")
    file_of(fleet, port)
    fleet.want(replica())
    fleet.agent()
    engine = fleet.replica("ready")
    before = fleet.connected(port)

    leader.kill()
    until(
        lambda: (fleet.status() or {"link": {}})["link"].get("state") == "disconnected",
        "disconnected is shown",
    )
    fleet.control("cp1", port, "leader 2")
    after = fleet.connected(port)
    again = fleet.replica("ready")

    assert after["session"] != before["session"]
    assert (again["pid"], again.get("restarts", 0)) == (engine["pid"], 0)


def started_again(agent: Program, fleet: Fleet, port: int) -> None:
    """After a SIGKILL, until it has heard what is wanted."""
    agent.kill()
    fleet.agent()
    fleet.connected(port)
    until(lambda: (fleet.status() or {}).get("rev_applied"), "the wish is known")


def test_a_person_stops_a_replica_and_it_stays_stopped_until_wanted_otherwise(
    fleet: Fleet, port: int
) -> None:
    file_of(fleet, port)
    fleet.want(replica())
    agent = fleet.agent()
    fleet.replica("ready")
    list(ask(fleet.socket, "stop", replica="a"))
    fleet.replica("stopped")
    started_again(agent, fleet, port)
    assert (fleet.status() or {})["replicas"] == []

    fleet.want(replica(generation=2))

    assert fleet.replica("ready")["generation"] == 2


def test_what_a_person_stopped_twice_or_before_a_restart_starts_at_a_word(
    fleet: Fleet, port: int
) -> None:
    agent, first = at_work(fleet, port)
    ends = list(ask(fleet.socket, "stop", replica="a"))
    fleet.replica("stopped")
    ended = list(ask(fleet.socket, "stop", replica="a"))
    list(ask(fleet.socket, "start", replica="a"))
    second = fleet.replica("ready")["pid"]
    list(ask(fleet.socket, "stop", replica="a"))
    fleet.replica("stopped")
    started_again(agent, fleet, port)
    held = (fleet.status() or {})["held"]
    planned = fleet.text("plan")
    started = list(ask(fleet.socket, "start", replica="a"))

    assert (ends, ended) == ([{"is_ending": True}], [{"is_ending": False}])
    assert started == [{"was_held": True, "drain": None}]
    assert fleet.replica("ready")["pid"] not in (first, second)
    assert held == ["a"]
    assert "hold   a: is wanted, and stopped by a person here\n" in planned
    assert "`llmgw engines start a` lets it run again" in planned
    assert (fleet.status() or {})["held"] == []


def test_sigterm_leaves_engines_and_on_stop_stops_them(fleet: Fleet, port: int) -> None:
    """T13, T50: the agent says goodbye, and the engine is there for the next one."""
    agent, pid = at_work(fleet, port)

    assert agent.kill(signal.SIGTERM) == 0
    assert alive(pid)
    file_of(fleet, port, supervisor='on_stop = "stop"\n')
    agent = fleet.agent()
    assert fleet.replica("ready")["pid"] == pid
    assert agent.kill(signal.SIGTERM) == 0
    assert not alive(pid)


def test_told_twice_to_stop_it_still_stops_its_engines(fleet: Fleet, port: int) -> None:
    """The second signal ended the agent at once, and left the engine half stopped."""
    supervisor = 'on_stop = "stop"\nstop_grace = "2s"\n'
    engine = fleet.engine_file().replace('"{port}"]', '"{port}", "--ignore-term"]')
    fleet.write(f"http://127.0.0.1:{port}", extra=engine, supervisor=supervisor)
    fleet.want(replica())
    agent = fleet.agent()
    pid = fleet.replica("ready")["pid"]

    agent.send(signal.SIGTERM)
    fleet.replica("stopping")
    agent.send(signal.SIGHUP)
    agent.send(signal.SIGINT)

    assert agent.kill(signal.SIGTERM) == 0
    assert not alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: run as root")
def test_on_a_disk_that_turned_read_only_the_agent_starts_and_adopts(
    fleet: Fleet, port: int
) -> None:
    """It did not start, and nobody looked after an engine that served."""
    agent, pid = at_work(fleet, port)
    agent.kill()
    state = str(fleet.folder / "state")
    subprocess.run(["mount", "--bind", state, state], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", state], check=True)
        agent = fleet.agent()
        fleet.connected(port)
        one = fleet.replica("ready")
        fleet.want(replica(), replica("b"))
        other = fleet.replica("backoff", "b")
        codes = {problem["code"] for problem in (fleet.status() or {})["problems"]}
        second = fleet.start(
            "second.log", ["agent", "--config", fleet.folder / "agent.toml"]
        )
        assert second.wait() == 1
        agent.kill()
    finally:
        subprocess.run(["umount", "--lazy", state], check=True)

    assert (one["pid"], one["adopted"]) == (pid, True)
    assert "Read-only file system" in other["reason"]
    assert "state_unwritable" in codes
    assert "another agent uses this state directory" in second.said


def test_after_a_reboot_without_a_control_plane_what_was_wanted_starts(
    fleet: Fleet,
) -> None:
    port = free_port()
    control = fleet.control("cp1", port, "leader 1")
    agent, first = at_work(fleet, port)
    control.kill()
    agent.kill()
    fleet.kill_engine(first)

    fleet.agent()

    assert fleet.replica("ready")["pid"] != first


def test_a_wish_that_went_away_meanwhile_is_stopped_by_the_leaders_word_only(
    fleet: Fleet,
) -> None:
    """T58: the engine outlives a disconnected restart, and ends with a snapshot."""
    port = free_port()
    control = fleet.control("cp1", port, "leader 1")
    agent, pid = at_work(fleet, port)
    agent.kill()
    control.kill()
    fleet.want()
    fleet.agent()
    assert fleet.replica("ready")["pid"] == pid

    fleet.control("cp1", port, "leader 2")

    fleet.replica("stopped")
    assert not alive(pid)


def test_a_reload_takes_what_it_can_and_a_wrong_file_changes_nothing(
    fleet: Fleet, port: int
) -> None:
    agent, pid = at_work(fleet, port)
    second = free_port()
    fleet.control("cp2", second, "leader 2")

    file = fleet.folder / "agent.toml"
    file.write_text("bogus = 1\n" + file.read_text())
    agent.send(signal.SIGHUP)
    until(lambda: "reload" in codes(fleet), "the wrong file is said")
    assert f"{file}:1: bogus: the file was not taken over" in fleet.text()
    assert fleet.connected(port)
    file_of(fleet, second)
    agent.send(signal.SIGHUP)

    assert fleet.connected(second)
    assert "reload" not in codes(fleet)
    assert fleet.replica("ready")["pid"] == pid


def test_what_failed_is_tried_again_by_a_reload_once_its_cause_is_mended(
    fleet: Fleet, port: int
) -> None:
    """`put its folder into model_dirs` was said and done, and changed nothing."""
    fleet.write(f"http://127.0.0.1:{port}")
    fleet.want(replica())
    agent = fleet.agent()
    fleet.replica("failed")
    file_of(fleet, port)

    agent.send(signal.SIGHUP)

    assert fleet.replica("ready")


def codes(fleet: Fleet) -> set[str]:
    status = fleet.status() or {"problems": []}
    return {problem["code"] for problem in status["problems"]}


def test_the_agent_answers_scrapes_with_what_it_keeps(fleet: Fleet, port: int) -> None:
    metrics = free_port()
    file_of(fleet, port, f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n')
    fleet.want(replica())
    fleet.agent()
    fleet.replica("ready")

    with httpx.Client(trust_env=False) as client:
        page = client.get(f"http://127.0.0.1:{metrics}/metrics").text
        other = client.get(f"http://127.0.0.1:{metrics}/").status_code

    assert 'llmgw_replica_state{replica="a",state="ready"} 1.0' in page
    assert "llmgw_weights_fetching 0.0" in page
    assert 'llmgw_weights_fetches_total{result="failed"} 0.0' in page
    assert "llmgw_link_connected 1.0" in page
    assert 'llmgw_probe_success{probe="cpu"} 1.0' in page
    assert other == 404


def test_a_metrics_port_that_is_held_is_said_and_served_once_it_is_free(
    fleet: Fleet, port: int
) -> None:
    """T67."""
    holder = socket.create_server(("127.0.0.1", 0))
    metrics: int = holder.getsockname()[1]
    file_of(fleet, port, f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n')
    fleet.agent()
    until(lambda: "metrics" in codes(fleet), "the held port is said")

    holder.close()

    until(lambda: "metrics" not in codes(fleet), "it is served")
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"http://127.0.0.1:{metrics}/metrics").status_code == 200


def test_a_log_is_followed_and_no_other_file_is_read_in_its_place(
    fleet: Fleet, port: int
) -> None:
    program = fleet.folder / "talker"
    program.write_text(
        "#!/bin/sh\necho gr\u00fcezi; sleep 0.3; echo later; exec sleep 1000\n"
    )
    program.chmod(0o755)
    command = f'[engines.command]\nenabled = true\npath = "{program}"\n'
    fleet.write(f"http://127.0.0.1:{port}", extra=command)
    fleet.want(replica())
    fleet.agent()
    until(lambda: fleet.replica("starting").get("pid"), "it runs")
    said = ask(fleet.socket, "logs", replica="a", follow=True)

    heard = ""
    while "later" not in heard:
        heard += next(said)

    assert "gr\u00fcezi" in heard
    with pytest.raises(LlmgwError, match="has to be named"):
        list(ask(fleet.socket, "logs", replica=""))
    for name in ("../../agent", "a/../../x", "A", "a.zz"):
        with pytest.raises(LlmgwError, match="is not the name"):
            list(ask(fleet.socket, "logs", replica=name))
