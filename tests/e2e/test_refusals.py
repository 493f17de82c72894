"""What an operator is told when something is wrong: a sentence, never a traceback."""

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet, alive, llmgw, until
from tests.fakes.ports import free_port

HTTPS = "https://cp1:7443 is an https:// address but no tls certificates are configured"
HTTP = "tls is configured but http://cp1:7443 is an http:// address; use https://"
CERTIFICATES = (
    '[tls]\ncert_file = "/etc/llmgw/n1.crt"\nkey_file = "/etc/llmgw/n1.key"\n'
    'ca_file = "/etc/llmgw/ca.crt"\n'
)


def started(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        llmgw("agent", "--config", file, "--socket", file.parent / "agent.sock"),
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("https.toml", b'servers = ["https://cp1:7443"]\n', HTTPS),
        (
            "http.toml",
            b'servers = ["http://cp1:7443"]\n' + CERTIFICATES.encode(),
            HTTP,
        ),
        ("empty.toml", b"", "server is required"),
        ("binary.toml", b"\x00\xff\xfe" * 100, "binary.toml"),
        ("type.toml", b'servers = ["cp1"]\nheartbeat_interval = 5\n', "type.toml:2"),
        ("typo.toml", b'sevrers = ["cp1"]\n', "typo.toml:1"),
        ("bad.yaml", b"servers: [cp1\n", "bad.yaml"),
        ("bad.json", b'{"servers": ', "bad.json"),
    ],
)
def test_a_wrong_file_is_exit_78_with_its_place(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    """R5 in the original's words; T44."""
    (tmp_path / name).write_bytes(content)

    done = started(tmp_path / name)

    assert done.returncode == 78
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_folder", [False, True], ids=["none", "folder"])
def test_a_file_that_cannot_be_read_is_exit_78(tmp_path: Path, is_folder: bool) -> None:
    if is_folder:
        (tmp_path / "agent.toml").mkdir()

    done = started(tmp_path / "agent.toml")

    assert done.returncode == 78
    assert str(tmp_path / "agent.toml") in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_directory_that_cannot_be_written_is_exit_1(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('servers = ["127.0.0.1:1"]\nstate_dir = "/proc/llmgw"\n')

    done = started(file)

    assert done.returncode == 1
    assert "/proc/llmgw" in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


class Odd:
    """A server that does one thing to whoever connects, on any free port."""

    def __init__(self, says: bytes) -> None:
        self._says = says
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.settimeout(2)
                    if self._says:
                        peer.recv(65536)
                        peer.sendall(self._says)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.close()


HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"


@pytest.mark.parametrize(
    "says", [HTML, b"", os.urandom(512)], ids=["html", "", "noise"]
)
def test_an_odd_control_plane_is_passed_over_for_one_that_leads(
    fleet: Fleet, says: bytes
) -> None:
    odd = Odd(says)
    port = free_port()
    fleet.control("cp2", port, "leader 1")
    fleet.write(f"http://127.0.0.1:{odd.port}", f"http://127.0.0.1:{port}")

    agent = fleet.agent()

    fleet.connected(port)
    assert "Traceback" not in agent.said
    odd.close()


def executable(path: Path, script: str, mode: int = 0o755) -> Path:
    path.write_text(script)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("script", "mode", "state", "says"),
    [
        (None, 0o755, "failed", "server"),
        ("#!/bin/sh\nexit 0\n", 0o644, "failed", "server"),
        (
            "#!/bin/sh\necho no such flag >&2; exit 3\n",
            0o755,
            "backoff",
            "no such flag",
        ),
    ],
    ids=["missing", "not executable", "exits at once"],
)
def test_an_engine_that_cannot_start_is_said_with_its_reason(
    fleet: Fleet, script: str | None, mode: int, state: str, says: str
) -> None:
    """T55: at once, with the last log lines."""
    server = fleet.folder / "server"
    if script is not None:
        executable(server, script, mode)
    port = free_port()
    fleet.want({"id": "a", "generation": 1, "engine": "command"})
    fleet.control("cp1", port, "leader 1")
    extra = f'[engines.command]\nenabled = true\npath = "{server}"\n'
    fleet.write(f"http://127.0.0.1:{port}", extra=extra)

    agent = fleet.agent()

    assert says in fleet.replica(state)["reason"]
    assert "Traceback" not in agent.said


def test_an_engine_that_says_nothing_for_ever_is_starting_until_its_deadline(
    fleet: Fleet,
) -> None:
    server = executable(fleet.folder / "server", "#!/bin/sh\nexec sleep 1000\n")
    port = free_port()
    fleet.want({"id": "a", "generation": 1, "engine": "command"})
    fleet.control("cp1", port, "leader 1")
    extra = f'[engines.command]\nenabled = true\npath = "{server}"\n'
    quick = 'start_timeout = "1s"\nstop_grace = "1s"\n'
    fleet.write(f"http://127.0.0.1:{port}", extra=extra, supervisor=quick)

    fleet.agent()

    first = until(
        lambda: fleet.replica("starting").get("pid"), "the engine has a process"
    )
    reason = fleet.replica("backoff")["reason"]
    assert "1 s" in reason or "1s" in reason
    until(lambda: not alive(first), "the silent engine is gone")


def test_a_source_that_is_none_fails_its_replica_and_nothing_else(fleet: Fleet) -> None:
    """A slip of whoever wants it, which ended the agent, and the next one."""
    port = free_port()
    good = {"id": "a", "generation": 1, "engine": "command"}
    fleet.want(good)
    fleet.control("cp1", port, "leader 1")
    fleet.write(f"http://127.0.0.1:{port}", extra=fleet.engine_file())
    agent = fleet.agent()
    pid = fleet.replica("ready")["pid"]

    odd = {**good, "id": "b", "model": {"name": "m", "source": "tiny.gguf"}}
    fleet.want(good, odd)
    assert "is not a source" in fleet.replica("failed", "b")["reason"]
    odd |= {"generation": 2, "model": {"name": "m", "source": "https://["}}
    fleet.want(good, odd)
    until(
        lambda: "IPv6" in fleet.replica("failed", "b")["reason"],
        "the next one is refused by name",
        more=fleet.logs,
    )

    assert fleet.replica("ready")["pid"] == pid
    assert agent.kill(signal.SIGTERM) == 0
