"""`llmgw explain`: every value with its origin, on the machine the tests run on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from llmgw.config.fields import ROOT as KEYS
from llmgw.config.origin import leaves

ROOT = Path(__file__).parents[2]


def explain(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", "explain", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )


def found(answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(answer.stdout)


def test_every_key_has_a_value_and_an_origin(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('server = "127.0.0.1:7443"\nstop_me = 1\n')

    said = found(explain(str(path), "--json", "--allow-unknown-keys"))

    assert said["ok"] is True
    assert set(said["origin"]) == set(leaves(KEYS))
    assert said["config"]["mgmt_addr"] == "127.0.0.1"
    assert said["config"]["mgmt_interface"] == "lo"
    assert said["config"]["node_id"] == os.uname().nodename
    assert said["origin"]["mgmt_addr"] == {
        "source": "probe",
        "detail": "source address on the way to http://127.0.0.1:7443",
    }
    assert {w["key"] for w in said["warnings"]} == {"stop_me", "mgmt_addr"}
    assert all(set(w) == {"key", "what", "fix"} for w in said["warnings"])


def test_certificates_are_opened_unless_told_not_to(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'server = "127.0.0.1:7443"\n[tls]\ncert_file = "/nowhere/c"\n'
        'key_file = "/nowhere/k"\nca_file = "/nowhere/a"\n'
    )

    refused = explain(str(path), "--json")
    passed = explain(str(path), "--json", "--without-files")

    assert refused.returncode == 78
    (error,) = found(refused)["errors"]
    assert error["key"] == "tls.cert_file"
    assert error["line"] == 3
    assert "/nowhere/c cannot be read" in error["what"]
    assert passed.returncode == 0


def test_the_path_comes_from_the_one_variable(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "server: me:s3cret@127.0.0.1\nengines: {vllm: {env: {A: s3cret}}}\n"
    )

    answer = explain(LLMGW_CONFIG=str(path))

    assert answer.returncode == 0
    assert f"file: {path}:1" in answer.stdout
    assert '["http://me:***@127.0.0.1"]' in answer.stdout
    assert "s3cret" not in answer.stdout + answer.stderr


def test_values_and_origins_stand_below_each_other(tmp_path: Path) -> None:
    """One long list of servers, and nothing stood below anything."""
    path = tmp_path / "agent.toml"
    many = [f"cp{number}.example:7443" for number in range(9)]
    path.write_text(f"servers = {many}\nmgmt_addr = '127.0.0.1'\n")

    lines = explain(str(path)).stdout.splitlines()

    origin = next(line.index("default") for line in lines if "default" in line)
    starts = {line[origin - 2 : origin + 4] for line in lines[1:]}
    assert starts <= {"  defa", "  prob", "  file"}
    assert lines[0].endswith('"http://cp8.example:7443"]')
    assert lines[1].strip() == f"file: {path}:1"
