"""`llmgw control`: what cannot be is said at the start, and where."""

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.fleet import llmgw
from tests.fakes.certified import authority, control_plane
from tests.fakes.ports import free_port


def ended(folder: Path, *words: str | Path) -> tuple[int, str]:
    """Its exit code and all it said; it is not to serve."""
    done = subprocess.run(
        llmgw("control", "--state-dir", folder / "state", *words),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout + done.stderr


ANYWHERE = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((*ANYWHERE, "--role", "boss"), 2, ["invalid choice: 'boss'", "follow-file"]),
        ((*ANYWHERE, "--role", "follow-file"), 78, ["add --role-file FILE"]),
        ((*ANYWHERE, "--role", "etcd"), 78, ["no etcd to elect on", "add --etcd"]),
        (
            (*ANYWHERE, "--role", "etcd", "--etcd", "cp1:2379"),
            78,
            ["--etcd", "cp1:2379", "http://cp1:2379"],
        ),
        (("--listen", "nonsense"), 78, ["--listen", "'nonsense' is not HOST:PORT"]),
        (("--listen", "::1:7443"), 78, ["IPv6 address without brackets"]),
        (
            # All that is wrong at once.
            ("--listen", "x", "--heartbeat-s", "0.1", "--etcd-ttl", "1"),
            78,
            ["--listen", "--heartbeat-s", "--etcd-ttl"],
        ),
        ((*ANYWHERE, "--tls-cert", "cp.crt"), 78, ["all three or none"]),
        (
            (*ANYWHERE, "--tls-cert", "no", "--tls-key", "no", "--tls-ca", "no"),
            1,
            ["no: cannot be read: No such file"],
        ),
        ((*ANYWHERE, "--desired-file", "no.json"), 1, ["no.json", "no such file"]),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_with_its_exit_code(
    tmp_path: Path, words: Sequence[str], code: int, says: list[str]
) -> None:
    ended_with, said = ended(tmp_path, *words)

    assert ended_with == code, said
    assert "Traceback" not in said
    for part in says:
        assert part in said


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = ended(tmp_path, "--listen", f"127.0.0.1:{port}")

    assert code == 1
    assert f"127.0.0.1:{port}: cannot listen: Address already in use" in said
    assert "--listen" in said


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    tls = control_plane(authority(tmp_path / "pki"))
    other = control_plane(authority(tmp_path / "other"))
    words = ("--tls-cert", str(tls.cert_file), "--tls-key", str(other.key_file))
    code, said = ended(tmp_path, *ANYWHERE, *words, "--tls-ca", str(tls.ca_file))

    assert code == 1
    assert f"{other.key_file}: is not the key of {tls.cert_file}" in said


def test_a_wrong_desired_file_is_exit_78_with_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "desired.json"
    file.write_text('{"n1": [{"id": "A!", "engine": "lamacpp"}, {"idd": "b"}]}')
    code, said = ended(tmp_path, *ANYWHERE, "--desired-file", str(file))

    assert code == 78
    for part in ("n1[0].id", "n1[0].engine", "n1[1].id: ", "n1[1].idd: no such field"):
        assert part in said, said


def test_a_state_directory_that_cannot_be_made_or_is_held_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    code, said = ended(tmp_path, *ANYWHERE)

    assert code == 1
    assert f"{tmp_path}/state" in said
    assert "cannot be written" in said


def test_an_etcd_that_is_not_there_is_no_reason_to_end(tmp_path: Path) -> None:
    """It may come later: until then nobody is accepted."""
    away = f"http://127.0.0.1:{free_port()}"
    port = free_port()
    process = subprocess.Popen(
        llmgw(
            "control",
            "--state-dir",
            tmp_path / "state",
            f"--listen=127.0.0.1:{port}",
            "--role=etcd",
            f"--etcd={away}",
        ),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    try:
        said = ""
        for line in process.stderr:  # ends with the process, if it does end
            said += line
            if "no election" in said and "serves" in said:
                break
        code = process.poll()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()

    assert code is None, said
    assert away in said
