"""Writes what is made from the NixOS module: units without NixOS, nodes of vm-lite.

usage: python3 packaging/generate.py [--check]     needs nix-instantiate, no nixpkgs
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def evaluated(file: str) -> Any:
    """The value of a Nix file, in a store of its own: as any user, nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "NIX_STATE_DIR": f"{folder}/var",
            "NIX_STORE_DIR": f"{folder}/store",
            "NIX_LOG_DIR": f"{folder}/log",
            "NIX_CONF_DIR": folder,
            "NIX_REMOTE": "",
            "NIX_PATH": "",
            "NIX_CONFIG": "build-users-group =",
        }
        done = subprocess.run(
            ["nix-instantiate", "--eval", "--strict", "--json", str(ROOT / file)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def made() -> dict[Path, str]:
    """Every generated file with what belongs into it."""
    units: dict[str, str] = evaluated("packaging/units.nix")
    nodes = json.dumps(evaluated("vm-tests/lite/nodes.nix"), indent=1, sort_keys=True)
    files = {ROOT / "packaging/debian" / name: text for name, text in units.items()}
    return files | {ROOT / "vm-tests/lite/nodes.json": nodes + "\n"}


def stale() -> list[Path]:
    return [
        file
        for file, text in made().items()
        if not file.exists() or file.read_text() != text
    ]


def main() -> int:
    if shutil.which("nix-instantiate") is None:
        print("generate: left alone: packaging/debian, vm-tests/lite (no Nix here)")
        return 0
    if sys.argv[1:] == ["--check"]:
        for file in (old := stale()):
            print(f"{file.relative_to(ROOT)} is not current", file=sys.stderr)
        return 1 if old else 0
    for file, text in made().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
