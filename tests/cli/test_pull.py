"""`llmgw pull`, as a person and as a script run it."""

import hashlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import msgspec

from llmgw.cli.pull import paced
from llmgw.wire import Progress
from tests.fakes.weights_server import Status, WeightsServer


def pull(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", "pull", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "LLMGW_CONFIG": "/nowhere/agent.toml"},
    )


def test_a_file_with_its_digest_lands_where_it_is_told_to(tmp_path: Path) -> None:
    content = b"wheel" * 1000
    with WeightsServer() as server:
        server.put("/w/thing-1.0.whl", content)
        ended = pull(
            server.url("/w/thing-1.0.whl"),
            "--digest",
            "sha256:" + hashlib.sha256(content).hexdigest(),
            "--to",
            str(tmp_path),
        )

    assert (ended.returncode, ended.stdout) == (0, f"{tmp_path}/thing-1.0.whl\n")
    assert (tmp_path / "thing-1.0.whl").read_bytes() == content


def test_events_are_a_line_of_json_each(tmp_path: Path) -> None:
    with WeightsServer() as server:
        server.put("/model", b"x" * 4096)
        ended = pull(server.url("/model"), "--to", str(tmp_path), "--json")
        events = [msgspec.json.decode(line) for line in ended.stdout.splitlines()]
        server.put("/gone", b"")
        server.spoil("/gone", Status(404), times=None)
        refused = pull(server.url("/gone"), "--to", str(tmp_path), "--json")

    assert events[-1] == {"event": "done", "path": f"{tmp_path}/model"}
    assert events[-2]["done"] == events[-2]["total"] == 4096
    assert refused.returncode == 1
    failure = msgspec.json.decode(refused.stdout.splitlines()[-1])
    assert failure["event"] == "failed"
    assert "404" in failure["what"]


def test_a_secret_in_the_address_is_not_shown(tmp_path: Path) -> None:
    with WeightsServer() as server:
        address = server.url("/gone?signature=s3cret").replace("//", "//u:hunter2@")
        ended = pull(address, "--to", str(tmp_path))

    assert ended.returncode == 1
    assert "404" in ended.stderr
    assert "s3cret" not in ended.stderr
    assert "hunter2" not in ended.stderr


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with WeightsServer() as server:
        server.put("/model.gguf", b"x" * 100_000)
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "llmgw", "pull"),
                *(server.url("/model.gguf"), "--to", str(tmp_path)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        drawn = b""
        try:
            while chunk := os.read(ours, 4096):
                drawn += chunk
        except OSError:
            pass  # the other end is closed: this is how a terminal says so
        finally:
            os.close(ours)

        assert child.wait(30) == 0

    assert b"97.7/97.7 KiB" in drawn


def test_a_line_says_how_fast_it_comes_and_how_long_it_will_take() -> None:
    step = Progress(what="fetching", done=2 * 1024**3, total=4 * 1024**3)

    assert paced(step, 512 * 1024**2) == ", 512.0 MiB/s, 4 s to go"
    assert paced(Progress(what="fetching", done=5), 1024.0) == ", 1.0 KiB/s"
    assert paced(step, 0.0) == ""
