"""`llmgw pull`, as a person and as a script run it."""

import hashlib
import os
import pty
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from llmgw.cli.pull import Lines, paced, prepared, pulled
from llmgw.wire import Progress
from tests.fakes.ports import free_port
from tests.fakes.typed import LLMGW
from tests.fakes.weights_server import Cut, Raw, Status, WeightsServer


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


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_what_root_pulls_is_the_agents_in_whose_folder_it_lands(tmp_path: Path) -> None:
    os.chown(tmp_path, 4242, 4242)
    with WeightsServer() as server:
        server.put("/model", b"x" * 4096)
        ended = pull(server.url("/model"), "--to", str(tmp_path), "--json")

    assert ended.returncode == 0
    assert {one.lstat().st_uid for one in tmp_path.rglob("*")} == {4242}


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


def test_a_failure_is_told_once_and_with_what_helps(tmp_path: Path) -> None:
    """A line of the log said the same before it."""
    with WeightsServer() as server:
        url = server.url("/gone")
        server.put("/gone", b"")
        server.spoil("/gone", Status(404), times=None)
        ended = pull(url, "--to", str(tmp_path))

    failure, fix = ended.stderr.splitlines()
    assert failure == f"{url}: the server answers 404 Not Found"
    assert fix == "  fix: correct the address: by this name there is nothing"


def test_a_source_of_another_kind_is_told_all_kinds_there_are() -> None:
    """It left out http://, which with a digest is one."""
    ended = pull("ftp://host/model.gguf")

    for kind in ("hf://", "https://", "http://", "file://"):
        assert f"{kind}" in ended.stderr.partition("fix:")[2]


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


async def test_of_a_standstill_a_line_is_written_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There was none, and a fetch that stood still looked like one that had ended."""
    lines = Lines("x", every=0.01)
    lines.show(Progress(what="fetching", done=5))
    said = capsys.readouterr().err
    assert said == "x: fetching, 5 B\n"

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(lines.run)
            while said.count("x: fetching, 5 B\n") < 3:
                await anyio.sleep(0.01)
                said += capsys.readouterr().err
            lines.show(Progress(what="fetching", done=9))
            while "x: fetching, 9 B, " not in said:  # and how fast
                await anyio.sleep(0.01)
                said += capsys.readouterr().err
            group.cancel_scope.cancel()


def test_what_goes_on_beside_a_fetch_is_started_and_ended(tmp_path: Path) -> None:
    begun: list[bool] = []

    async def beside() -> None:
        begun.append(True)
        await anyio.sleep_forever()

    with WeightsServer() as server:
        server.put("/model", b"x" * 4096)
        arguments = Namespace(source=server.url("/model"), digest=None)
        path = pulled(prepared(None, tmp_path), arguments, lambda _: None, beside)

    assert path == tmp_path / "model"
    assert begun == [True]


def test_a_folder_that_cannot_be_written_to_is_told_by_the_option_that_named_it(
    tmp_path: Path,
) -> None:
    """It named a setting that nobody had set."""
    there = tmp_path / "file"
    there.write_bytes(b"")
    with WeightsServer() as server:
        server.put("/model", b"x")
        ended = pull(server.url("/model"), "--to", str(there))

    assert ended.returncode == 1
    assert f"{there}" in ended.stderr
    assert "fix: --to must be a folder" in ended.stderr
    assert "weights_cache" not in ended.stderr


def test_a_length_that_no_file_has_is_told_as_it_was_said(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**70
    with WeightsServer() as server:
        server.put("/model", b"x")
        server.spoil("/model", Raw(head), times=None)
        ended = pull(server.url("/model"), "--to", str(tmp_path))

    assert ended.returncode == 1
    assert f"model: the server says that it is {2**70} bytes long" in ended.stderr
    assert "Traceback" not in ended.stderr


def told_by(server: WeightsServer, path: str, to: Path) -> tuple[list[str], list[Any]]:
    """What the events of a pull say it is at, and the events."""
    ended = pull(server.url(path), "--to", str(to), "--json")
    events = [msgspec.json.decode(line) for line in ended.stdout.splitlines()]
    return [e["what"] for e in events if e["event"] == "progress"], events


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "none"])
def test_a_server_that_ends_its_answers_early_is_told_of_while_it_does(
    tmp_path: Path, ranges: bool
) -> None:
    """Nothing was: a bar that stands still, for as long as the server does that."""
    with WeightsServer() as server:
        file = server.put("/model", b"x" * 40_000)
        file.ranges = ranges
        server.spoil("/model", Cut(at=0), times=2)
        said, events = told_by(server, "/model", tmp_path)

    assert events[-1]["event"] == "done"
    assert any("asked again" in what and "ended" in what for what in said), said


def test_a_server_that_is_asked_to_wait_for_is_told_of_until_then(
    tmp_path: Path,
) -> None:
    with WeightsServer() as server:
        server.put("/model", b"x" * 4096)
        server.spoil("/model", Status(503, retry_after="2"))
        said, events = told_by(server, "/model", tmp_path)

    assert events[-1]["event"] == "done"
    assert "fetching, asked again in 2 s (the server answers 503" in said[0]
    assert any("asked again in 1 s" in what for what in said), said


def test_tls_to_a_port_that_speaks_none_is_told_as_that(tmp_path: Path) -> None:
    with WeightsServer() as server:
        server.put("/model", b"x")
        said = first_said(
            server.url("/model").replace("http:", "https:"), "--to", str(tmp_path)
        )

    assert "asked again" in said
    assert "the TLS handshake breaks: " in said


def test_a_refused_connection_is_told_as_that(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/model"
    said = first_said(url, "--to", str(tmp_path))

    assert said.startswith(f"{url}: fetching, asked again")
    assert "(Connection refused)" in said


def first_said(*arguments: str) -> str:
    """The first line of progress of a pull, which is then interrupted."""
    child = subprocess.Popen(
        [*LLMGW, "pull", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LLMGW_CONFIG": "/nowhere/agent.toml"},
    )
    assert child.stderr is not None
    with child:
        said = child.stderr.readline()
        child.send_signal(signal.SIGINT)
        child.stderr.read()
    return said
