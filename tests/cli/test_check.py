"""`llmgw check`: exit codes, what is printed, and that it looks at nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FIVE = """\
servers = ["cp1", "ftp://cp2"]
heartbeat_interval = 5
node_id = " gpu-07"
sttae_dir = "/x"
[supervisor]
backend = "sytemd"
"""


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )


def test_five_faults_are_five_messages_and_78(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(FIVE)

    answer = check(str(path))

    assert answer.returncode == 78
    assert answer.stdout == ""
    assert answer.stderr.count(f"{path}:") == 5
    assert "Traceback" not in answer.stderr


def test_a_person_is_told_line_by_line(tmp_path: Path) -> None:
    """Also where the most important one, which programs are told first, is below."""
    path = tmp_path / "agent.toml"
    path.write_text(f"foo = 1\n{FIVE}")

    answer = check(str(path))

    said = [line for line in answer.stderr.splitlines() if line.startswith(str(path))]
    lines = [int(line.removeprefix(f"{path}:").partition(":")[0]) for line in said]
    assert lines == [1, 2, 3, 4, 5, 7]


def test_the_same_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(FIVE)

    answer = check(str(path), "--json")

    found = json.loads(answer.stdout)
    assert answer.returncode == 78
    assert found["ok"] is False
    assert len(found["errors"]) == 5
    assert found["errors"][0] == {
        "file": str(path),
        "line": 1,
        "key": "servers[1]",
        "what": 'server "ftp://cp2" must be an http:// or https:// address',
        "fix": "write http://cp2",
    }


def test_a_right_file_is_shown_with_the_origin_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('server = "localhost:7443"\nreconnect_max = "500ms"\n')

    answer = check(str(path), "--json")

    found = json.loads(answer.stdout)
    assert answer.returncode == 0
    assert found["ok"] is True
    assert found["config"]["servers"] == ["http://localhost:7443"]
    assert found["config"]["heartbeat_interval"] == 5.0
    assert found["origin"]["servers"] == {"source": "file", "detail": f"{path}:1"}
    assert found["origin"]["heartbeat_interval"]["source"] == "default"
    assert found["warnings"] == [
        {
            "key": "reconnect_max",
            "what": "500ms is less than reconnect_base 1s; 30s is used",
            "fix": 'write "30s" or more',
        }
    ]


def test_unknown_keys_pass_if_asked(tmp_path: Path) -> None:
    """T46."""
    path = tmp_path / "agent.toml"
    path.write_text('server = "localhost"\nfuture = true\n')

    assert check(str(path)).returncode == 78
    answer = check(str(path), "--allow-unknown-keys")

    assert answer.returncode == 0
    assert "future: no such setting" in answer.stderr


@pytest.mark.skipif(
    not Path("/usr/bin/strace").exists(), reason="needs strace: apt-get install strace"
)
def test_no_other_file_is_opened_and_nobody_is_asked(tmp_path: Path) -> None:
    """The certificates named do not exist, and no name is looked up."""
    path = tmp_path / "agent.toml"
    path.write_text(
        'server = "cp.invalid"\nmodel_dirs = ["/nowhere/models"]\n'
        'tls = { cert_file = "/nowhere/c", key_file = "/nowhere/k", '
        'ca_file = "/nowhere/a" }\n'
    )
    trace = tmp_path / "trace"

    strace = ["/usr/bin/strace", "-f", "-o", trace, "-e", "trace=file,network"]
    answer = subprocess.run(
        [*strace, sys.executable, "-m", "llmgw", "check", str(path)],
        capture_output=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )

    calls = trace.read_text()
    assert answer.returncode == 0
    assert str(path) in calls
    assert "/nowhere" not in calls
    assert "socket(" not in calls
    assert "resolv.conf" not in calls


def test_nothing_large_is_imported(tmp_path: Path) -> None:
    """It runs for every node of a fleet when a site is built."""
    path = tmp_path / "agent.toml"
    path.write_text('server = "localhost"\n')

    answer = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "llmgw", "check", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        check=False,
    )

    imported = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines()}
    assert answer.returncode == 0
    assert "msgspec" in imported
    assert not imported & {"httpx", "anyio", "cryptography", "psutil", "pynvml", "ssl"}
