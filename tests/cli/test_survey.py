"""`llmgw survey` and `llmgw doctor` as they are typed."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.fakes.control_plane import ControlPlane
from tests.fakes.typed import LLMGW

ROOT = Path(__file__).parents[2]


def llmgw(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=ROOT,
        env=os.environ | {"LLMGW_CONFIG": "/nowhere"} | environ,
        check=False,
    )


def config(folder: Path, **more: str) -> str:
    path = folder / "agent.toml"
    lines = ['servers = ["127.0.0.1:1"]', 'node_id = "n1"', f'state_dir = "{folder}"']
    lines += [f'{key} = "{value}"' for key, value in more.items()]
    path.write_text("\n".join(lines))
    return str(path)


def test_a_survey_needs_no_file_and_is_json_if_asked() -> None:
    answer = llmgw("survey", "--json")

    said: dict[str, Any] = json.loads(answer.stdout)
    assert answer.returncode == 0
    assert said["facts"]["cpu"]["value"]["usable"] >= 1
    assert said["facts"]["models"]["value"] == []
    assert said["probes"].keys() == said["facts"].keys()
    assert all(run["ok"] for run in said["probes"].values())


def test_without_a_file_the_folders_are_those_of_an_agent_without_one() -> None:
    """The cache was missing: where fetched weights would land, and if there is room."""
    said = json.loads(llmgw("survey", "--json").stdout)["facts"]["disks"]["value"]
    assert {one["use"] for one in said} == {"weights_cache", "engines_dir", "state_dir"}


def test_no_label_is_cut(tmp_path: Path) -> None:
    names = {
        line.split()[0]
        for line in llmgw("survey", config(tmp_path)).stdout.splitlines()
    }
    assert {"mgmt_addr", "mgmt_interface"} <= names


def test_the_doctor_says_where_there_is_no_file_how_to_get_one() -> None:
    answer = llmgw("doctor", LLMGW_CONFIG="/nowhere/agent.toml")

    first, fix, *rest = answer.stdout.splitlines()
    assert answer.returncode == 1
    assert first.startswith("FAULT   configuration: /nowhere")
    assert "llmgw schema" in fix
    assert any(line.startswith("skipped certificates: ") for line in rest)


@pytest.mark.parametrize("command", ["doctor", "survey", "explain"])
def test_the_file_may_be_given_as_other_commands_have_it(
    tmp_path: Path, command: str
) -> None:
    file = config(tmp_path, stat_dir="x")

    answer = llmgw(command, "--config", file)

    assert f"{file}:4: stat_dir" in answer.stdout + answer.stderr


def test_the_doctor_alone_speaks(tmp_path: Path) -> None:
    """A line of the log stood among the findings, about what a finding said as well."""
    path = Path(config(tmp_path, mgmt_addr="127.0.0.1"))
    text = path.read_text().replace("127.0.0.1:1", "https://127.0.0.1:1")
    nowhere = "".join(
        f'{name} = "{tmp_path}/none"\n' for name in ("cert_file", "key_file", "ca_file")
    )
    path.write_text(f"{text}\n[tls]\n{nowhere}")

    answer = llmgw("doctor", str(path))

    assert "FAULT   certificates: " in answer.stdout
    assert answer.stderr == ""


def test_a_survey_is_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    answer = llmgw("survey", config(tmp_path))

    names = [line.split()[0] for line in answer.stdout.splitlines() if line[0] != " "]
    assert names[:3] == ["os", "cpu", "memory"]


def test_the_management_address_is_told_with_its_reason(tmp_path: Path) -> None:
    answer = llmgw("survey", config(tmp_path), "--json")

    said = json.loads(answer.stdout)["management"]
    assert said["addr"]["value"] == "127.0.0.1"
    assert "source address on the way to" in said["addr"]["why"]
    assert said["interface"]["value"] == "lo"


def test_watching_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    command = [*LLMGW, "survey", config(tmp_path), "--watch"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("cpu ")
            if seen == 2:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()

    assert seen == 2
    assert process.returncode == 0


def test_a_wrong_file_is_a_usage_of_its_own(tmp_path: Path) -> None:
    assert llmgw("survey", config(tmp_path, stat_dir="x")).returncode == 78


def test_the_doctor_says_each_thing_on_a_line(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"

    answer = llmgw("doctor", config(tmp_path), "--json", "--bundle", str(path))

    said = json.loads(answer.stdout)
    assert answer.returncode == 1
    assert said["ok"] is False
    faults = [one["check"] for one in said["findings"] if one["verdict"] == "fault"]
    assert faults == ["leader"]
    assert path.stat().st_size > 0


async def test_the_doctor_is_content_where_all_is_well(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        plane = ControlPlane()
        await group.start(plane.run)
        file = await anyio.to_thread.run_sync(written, tmp_path, plane.url)
        answer = await anyio.to_thread.run_sync(llmgw, "doctor", file)

        checks = [line.partition(":")[0] for line in answer.stdout.splitlines()]
        assert answer.returncode == 0, answer.stdout
        assert len(checks) > 15
        for check in EVERY:
            assert any(check in one for one in checks), check
        group.cancel_scope.cancel()


EVERY = (
    "configuration", "certificates", "control plane", "leader", "clock", "address",
    "proxies", "GPUs and driver", "adapters", "directories and space", "engines",
    "device nodes", "memlock", "state_dir", "weights_cache", "ports", "unit",
    "reached from the control plane",
)  # fmt: skip


def written(folder: Path, url: str) -> str:
    file = Path(config(folder, weights_cache=f"{folder}/weights"))
    file.write_text(file.read_text().replace("127.0.0.1:1", url))
    return str(file)


SECRET = "s3cret-that-is-nobodys-business"
PLANTED = f"""
server = "https://node:{SECRET}@127.0.0.1:1"
node_id = "n1"
[labels]
api_token = "{SECRET}"
[tls]
cert_file = "FOLDER/cert.pem"
key_file = "FOLDER/key.pem"
ca_file = "FOLDER/ca.pem"
[weights]
hf_token_file = "FOLDER/token"
hf_endpoint = "https://user:{SECRET}@hub"
[[weights.mirrors]]
url = "https://user:{SECRET}@mirror"
[engines.vllm]
path = "FOLDER/vllm"
args = ["--api-key", "{SECRET}", "--hf-token={SECRET}"]
[engines.vllm.env]
OPENAI_API_KEY = "{SECRET}"
[tracing]
endpoint = "https://user:{SECRET}@traces"
"""
KEY = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"


def test_no_secret_gets_into_a_bundle_wherever_it_stands(tmp_path: Path) -> None:
    """In the file, the environment, the files that it names, what programs say."""
    path, file = tmp_path / "bundle.tar.gz", tmp_path / "agent.toml"
    file.write_text(PLANTED.replace("FOLDER", str(tmp_path)))
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text(KEY)
    (tmp_path / "token").write_text(SECRET)
    program = f"#!/bin/sh\necho 'Authorization: Bearer {SECRET}'\n"
    (tmp_path / "vllm").write_text(program)
    (tmp_path / "vllm").chmod(0o755)
    environ = {
        "HF_TOKEN": SECRET,
        "HTTPS_PROXY": f"http://user:{SECRET}@proxy:3128",
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }

    answer = llmgw("doctor", str(file), "--json", "--bundle", str(path), **environ)

    assert answer.returncode == 1
    assert SECRET not in answer.stdout + answer.stderr
    with tarfile.open(path) as archive:
        names = {entry.name.rpartition("/")[2] for entry in archive}
        assert names == {"version.txt", "findings.json", "facts.json", "settings.toml"}
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            text = content.read().decode()
            assert SECRET not in text, entry.name
            if entry.name.endswith("settings.toml"):
                assert "OPENAI_API_KEY" in text  # that it is set is told
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_doctor_names_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.tar.gz"
    file = config(tmp_path, stat_dir="x")

    answer = llmgw("doctor", file, "--bundle", str(path))

    assert answer.returncode == 1
    assert "stat_dir" in answer.stdout
    assert "state_dir" in answer.stdout
    with tarfile.open(path) as archive:
        names = {entry.name.rpartition("/")[2] for entry in archive}
    # What the machine is was left out, though no file says anything of it.
    assert names == {"version.txt", "findings.json", "facts.json"}
