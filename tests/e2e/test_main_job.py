"""The whole path on loopback: real control planes, a real agent, a real llama.cpp."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from llmgw.engines.place import Build
from tests.e2e.fleet import Fleet, alive, llmgw, until
from tests.fakes.ports import free_port


def served(fleet: Fleet, tiny: Path) -> dict[str, object]:
    """The tiny model as a replica, in the terms of the wire."""
    link = fleet.folder / "models/tiny.gguf"
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        link.symlink_to(tiny)
    return {
        "id": "a",
        "generation": 1,
        "engine": "llamacpp",
        "context": 256,
        "model": {"name": "tiny", "path": str(link)},
    }


def engine_file(llama: Build) -> str:
    return f'[engines.llamacpp]\npath = "{llama.binary}"\n'


class Client(threading.Thread):
    """Somebody who uses the engine all the while, one completion after another."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.answers = 0
        self.faults: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        with httpx.Client(trust_env=False, timeout=20) as client:
            while not self.done.is_set():
                body = {"prompt": "a", "n_predict": 4}
                try:
                    client.post(f"{self.url}/completion", json=body).raise_for_status()
                except httpx.HTTPError as error:
                    self.faults.append(repr(error))
                else:
                    self.answers += 1


@pytest.mark.timeout(120)
def test_an_agent_that_is_killed_leaves_its_engine_serving_and_the_next_adopts_it(
    fleet: Fleet, llama: Build, tiny: Path
) -> None:
    port = free_port()
    fleet.want(served(fleet, tiny))
    fleet.control("cp1", port, "leader 1")
    fleet.write(f"http://127.0.0.1:{port}", extra=engine_file(llama))
    first = fleet.agent()
    replica = fleet.replica("ready")
    client = Client(f"http://127.0.0.1:{replica['ports']['api']}")
    client.start()

    first.kill()
    before = client.answers
    until(lambda: client.answers > before + 2, "the engine answers without its agent")
    fleet.agent()
    adopted = until(
        lambda: (one := fleet.replica("ready")) and one.get("adopted") and one,
        "adopted",
    )
    fleet.connected(port)
    before = client.answers
    until(lambda: client.answers > before + 2, "the engine answers under the next one")
    client.done.set()
    client.join()

    assert adopted["pid"] == replica["pid"]
    assert adopted["ports"] == replica["ports"]
    assert client.faults == []


@pytest.mark.timeout(120)
def test_the_leader_dies_and_the_agent_is_with_the_next_and_the_engine_untouched(
    fleet: Fleet, llama: Build, tiny: Path
) -> None:
    """Over TLS, with certificates of the project's own making."""
    pki = fleet.folder / "pki"
    run_pki(pki, "init")
    for name in ("cp1", "cp2", "n1"):
        run_pki(pki, "issue", name, "--san", "127.0.0.1")
    one, two = free_port(), free_port()
    fleet.want(served(fleet, tiny))
    standby = fleet.control("cp1", one, "standby", *tls(pki, "cp1"))
    leader = fleet.control("cp2", two, "leader 1", *tls(pki, "cp2"))
    extra = engine_file(llama)
    extra += f'[tls]\ncert_file = "{pki}/n1.crt"\nkey_file = "{pki}/n1.key"\n'
    extra += f'ca_file = "{pki}/ca.crt"\n'
    fleet.write(f"https://127.0.0.1:{one}", f"https://127.0.0.1:{two}", extra=extra)
    fleet.agent()
    fleet.connected(two)
    replica = fleet.replica("ready")

    fleet.role("cp1", "leader 2")
    leader.kill()
    link = fleet.connected(one)

    again = fleet.replica("ready")
    assert link["epoch"] == 2
    assert (again["pid"], again.get("restarts", 0)) == (replica["pid"], 0)
    assert standby.said


def run_pki(folder: Path, *words: str) -> None:
    subprocess.run(
        llmgw("pki", "--dir", folder, *words),
        check=True,
        capture_output=True,
    )


def tls(pki: Path, name: str) -> list[str]:
    options = ["--tls-cert", f"{pki}/{name}.crt", "--tls-key", f"{pki}/{name}.key"]
    return [*options, "--tls-ca", f"{pki}/ca.crt"]


def demo(folder: Path, llama: Build, model: str | Path) -> list[str]:
    """The command, and where it finds the engine."""
    path = f"PATH={Path(llama.binary).parent}:{os.environ['PATH']}"
    return [
        *("env", path),
        *llmgw("up", "--demo", "--once", "--model", model),
        *("--state-dir", f"{folder}/up", "--socket", f"{folder}/agent.sock"),
    ]


def answered(command: list[str]) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "answer" in done.stdout
    # All that it names would be gone.
    assert "to try next" not in done.stdout


def test_the_demo_answers_once_and_leaves_nothing_running(
    tmp_path: Path, llama: Build, tiny: Path
) -> None:
    answered(demo(tmp_path, llama, tiny))

    assert not any(alive(pid) for pid in pids_of(str(tmp_path)))


def test_the_demo_of_one_model_says_nothing_of_the_next(
    tmp_path: Path, llama: Build, tiny: Path
) -> None:
    """What was wanted the last time is kept on both sides, and its model is gone."""
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        answered(demo(tmp_path, llama, shutil.copy(tiny, folder)))
        shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
@pytest.mark.parametrize("at", ["engine:", "starting the", "demo: starting", "asking"])
def test_the_demo_interrupted_at_any_step_ends_at_once_and_leaves_nothing(
    tmp_path: Path, llama: Build, tiny: Path, at: str, number: int
) -> None:
    """Twice, as `timeout` and a terminal do: the second must not leave the engine."""
    model = Path(shutil.copy(tiny, tmp_path))  # its path marks the engine as ours
    started = subprocess.Popen(
        demo(tmp_path, llama, model),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout
    said = ""
    while at not in said:
        line = started.stdout.readline()
        assert line, said
        said += line

    started.send_signal(number)
    started.send_signal(number)
    said += started.communicate(timeout=30)[0]

    assert started.returncode in (0, 1), said
    assert "Traceback" not in said
    assert not any(alive(pid) for pid in pids_of(str(tmp_path)))


def test_the_demo_ends_the_drain_of_the_last_time(
    tmp_path: Path, llama: Build, tiny: Path
) -> None:
    """It would wait for ever for the replica that a drain holds back."""
    command = demo(tmp_path, llama, tiny)
    served = subprocess.Popen(
        [word for word in command if word != "--once"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout
    for line in served.stdout:
        if "serving until" in line:
            break
    door = ("--socket", f"{tmp_path}/agent.sock")
    subprocess.run(llmgw("drain", *door), check=True, capture_output=True)
    served.terminate()
    served.communicate(timeout=30)

    answered(command)


def test_a_second_demo_says_how_it_could_be_and_leaves_the_first_alone(
    tmp_path: Path, llama: Build, tiny: Path
) -> None:
    command = [word for word in demo(tmp_path, llama, tiny) if word != "--once"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert first.stdout
    assert "engine" in first.stdout.readline()

    same = refused(command)
    elsewhere = [word.replace(f"{tmp_path}/up", f"{tmp_path}/up2") for word in command]
    for line in first.stdout:
        if "serving until" in line:
            break
    door = refused(elsewhere)

    assert "--state-dir DIR and --socket PATH" in same
    assert "another agent answers here" in door
    assert "--socket PATH" in door
    assert first.poll() is None
    first.terminate()
    first.communicate(timeout=30)


def refused(command: list[str]) -> str:
    """What it says, before it has fetched or started anything."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=30
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("/nowhere.gguf", "No such file"),
        ("/", "Is a directory"),
        (__file__, "does not begin with GGUF"),
        ("hf://a", "is not hf://owner/name"),
    ],
    ids=["missing", "folder", "text", "half a source"],
)
def test_the_demo_refuses_what_is_no_model_before_anything_is_fetched(
    tmp_path: Path, llama: Build, model: str, why: str
) -> None:
    said = refused(demo(tmp_path, llama, model))

    assert why in said
    assert "fix: " in said
    assert not any(tmp_path.iterdir())


# How it comes to be in a terminal: as its leader, or below one such as `make`, which
# alone is told that the terminal is gone. Under `nohup` the tests would hand on that a
# SIGHUP is ignored.
AS_LEADER = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
BELOW_ONE = """
import signal, subprocess, sys
signal.signal(signal.SIGHUP, lambda *_: None)
subprocess.run(sys.argv[1:])
"""


@pytest.mark.parametrize("start", [AS_LEADER, BELOW_ONE], ids=["leader", "below"])
def test_the_demo_in_a_terminal_that_is_closed_leaves_nothing_running(
    tmp_path: Path, llama: Build, tiny: Path, start: str
) -> None:
    """What it says then cannot be written, and that ends nothing too early."""
    model = Path(shutil.copy(tiny, tmp_path))
    ours, theirs = pty.openpty()
    command = [word for word in demo(tmp_path, llama, model) if word != "--once"]
    command = ["setsid", "--ctty", sys.executable, "-c", start, *command]
    started = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while b"serving until" not in said:
        said += os.read(ours, 4096)
    assert pids_of(str(model))

    os.close(ours)
    try:
        started.wait(30)
    finally:
        started.kill()

    assert not any(alive(pid) for pid in pids_of(str(tmp_path)))


def test_the_demo_whose_reader_has_enough_leaves_nothing_running(
    tmp_path: Path, llama: Build, tiny: Path
) -> None:
    model = Path(shutil.copy(tiny, tmp_path))
    started = subprocess.Popen(
        [word for word in demo(tmp_path, llama, model) if word != "--once"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout
    assert started.stderr
    for line in started.stdout:
        if b"demo: starting" in line:
            break
    started.stdout.close()

    said = started.stderr.read()
    started.stderr.close()

    assert started.wait(30) == 1
    assert b"Traceback" not in said
    assert not any(alive(pid) for pid in pids_of(str(tmp_path)))


def pids_of(text: str) -> list[int]:
    """Processes that have *text* on their command line."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            pass
    return found
