"""Evaluates this project's Nix files with a bare `nix-instantiate`, no nixpkgs."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NIX_FILES = sorted(
    path
    for path in ROOT.rglob("*.nix")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def run(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`nix-instantiate` with a store of its own: as any user, nothing is kept."""
    if shutil.which("nix-instantiate") is None:
        pytest.skip("no nix-instantiate; Debian: apt-get install nix-bin")
    environment = os.environ | {
        "NIX_STATE_DIR": str(state / "var"),
        "NIX_STORE_DIR": str(state / "store"),
        "NIX_LOG_DIR": str(state / "log"),
        "NIX_CONF_DIR": str(state),
        "NIX_REMOTE": "",
        "NIX_PATH": "",
        "NIX_CONFIG": "build-users-group =",
    }
    return subprocess.run(
        ["nix-instantiate", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def value(state: Path, *arguments: str) -> Any:
    """An evaluation's value; RuntimeError carries Nix's own message."""
    answer = run(state, "--eval", "--strict", "--json", *arguments)
    if answer.returncode != 0:
        raise RuntimeError(answer.stderr)
    return json.loads(answer.stdout)


def evaluate(state: Path, report: str = "module", **arguments: Any) -> Any:
    """What tests/nix/evaluate.nix reports of a configuration."""
    given = [
        word
        for name, argument in arguments.items()
        for word in ("--argstr", name, json.dumps(argument))
    ]
    file = str(ROOT / "tests/nix/evaluate.nix")
    return value(state, file, "--argstr", "report", report, *given)
