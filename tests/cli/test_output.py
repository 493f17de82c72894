"""Wherever a command's output goes, and whatever answers it: a sentence at most."""

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.fleet import llmgw


def ran(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """In a shell, which puts the output of "$@" where *line* says."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *llmgw(*words)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("words", [["schema"], ["survey"]])
def test_a_full_disk_is_told_as_that(words: list[str]) -> None:
    """When a disk is full is when somebody asks, and keeps the answer on it."""
    done = ran('"$@" >/dev/full', *words)

    assert done.returncode == 1
    said = "standard output cannot be written: No space left on device\n"
    assert done.stderr == said


@pytest.mark.parametrize("words", [["schema"], ["--help"]])
def test_a_reader_that_has_enough_is_no_fault(words: list[str]) -> None:
    done = ran('"$@" | true; exit ${PIPESTATUS[0]}', *words)

    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_a_closed_output_is_no_fault() -> None:
    done = ran('"$@" >&-', "schema")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", [5, [], {}, {"link": 5}, [{"x": 1}], [5], "x", None])
@pytest.mark.parametrize("command", ["status", "plan"])
def test_an_answer_of_another_shape_is_a_sentence(
    tmp_path: Path, command: str, value: object
) -> None:
    """A package that was upgraded asks an agent that was not restarted."""
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(json.dumps({"value": value}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = ran('"$@"', command, "--socket", str(path))
        thread.join()

    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)
    assert done.returncode == 0 or "as no agent of this version" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["weights", "--cache", "{}", "list"],
        ["weights", "--cache", "{}", "verify"],
        ["engines", "rollback", "--engines-dir", "{}", "x"],
        ["pki", "--dir", "{}", "init"],
        ["pki", "--dir", "{}", "issue", "n1"],
    ],
    ids=" ".join,
)
def test_a_folder_of_another_user_is_named(tmp_path: Path, words: list[str]) -> None:
    """Root without its powers is let in nowhere that is not its own."""
    if os.geteuid() != 0:
        pytest.skip("gives a folder away: run as root")
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    os.chown(shut, 65534, -1)

    without = 'setpriv --bounding-set=-all --inh-caps=-all "$@"'
    done = ran(without, *(word.format(shut) for word in words))

    assert done.returncode == 1
    assert done.stderr.startswith(f"{shut}/")
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
