"""`pip install llmgw` without extras: what is missing is named, the rest works."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.cli import names

ROOT = Path(__file__).resolve().parents[2]
# An entry of None in sys.modules is a module that is not installed.
WITHOUT = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split())
from llmgw.__main__ import main
main()
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def llmgw(tmp_path: Path) -> Run:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    needs = [
        f'Requires-Dist: {need}; extra == "{extra}"'
        for extra in ("control", "hf", "tracing", "cli")
        for need in extras[extra]
    ]
    # As an installer writes it: the tests also run where only the needs are installed.
    (tmp_path / "llmgw-0.1.0.dist-info").mkdir()
    head = ["Metadata-Version: 2.1", "Name: llmgw", "Version: 0.1.0", *needs]
    (tmp_path / "llmgw-0.1.0.dist-info/METADATA").write_text("\n".join(head) + "\n")
    absent = "aiohttp pydantic rich huggingface_hub h2 opentelemetry"

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT, absent, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            timeout=30,
        )

    return run


def test_only_the_control_plane_needs_an_extra_and_the_help_says_so(llmgw: Run) -> None:
    done = llmgw("--help")

    lines = done.stdout.splitlines()
    lacking = [line.split()[0] for line in lines if "not installed" in line]
    assert done.returncode == 0, done.stderr
    assert lacking == ["control", "up"]
    assert all(f"\n    {name}" in done.stdout for name in names())


@pytest.mark.parametrize("command", [("control", "--help"), ("up", "--demo")])
def test_a_command_names_the_extra_that_it_needs(
    llmgw: Run, command: tuple[str, ...]
) -> None:
    done = llmgw(*command)

    assert done.returncode == 1
    assert done.stderr == (
        f"llmgw {command[0]} needs aiohttp, which is not installed\n"
        "  fix: pip install 'llmgw[control]'\n"
    )


def test_a_file_is_checked_and_a_machine_surveyed_without_any(
    llmgw: Run, tmp_path: Path
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('servers = ["cp1:7443"]\n')

    assert llmgw("check", file).returncode == 0
    assert "memory" in llmgw("survey").stdout
