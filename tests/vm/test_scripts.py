"""The VM tests' scripts, typed and linted against the driver's methods."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nix.nix import ROOT

TESTS = ROOT / "vm-tests"
NODES: dict[str, dict[str, Any]] = json.loads((TESTS / "lite/nodes.json").read_text())
RUNNABLE = sorted(name for name, about in NODES.items() if "nodes" in about)
TOOLS = Path(sys.executable).parent


def whole(test: str) -> str:
    """The script as the driver gets it, with its machines declared.

    The light runner knows the names of those that it can run.
    """
    about = NODES[test]
    names = [re.sub(r"\W", "_", node) for node in about["nodes"]]
    script = "".join((TESTS / file).read_text() for file in about["script"])
    # the driver has no name for its class that a script may use
    script = script.replace("Node = Any\n", "", 1)
    return (
        "# pyright: strict, reportUnusedFunction=false\n"
        "# pyright: reportMissingModuleSource=false\n"
        "from driver import Node, machines, retry, start_all, subtest, t\n"
        + f"[{', '.join(names)}] = machines\n"
        + script
    )


def test_every_test_of_the_folder_is_described() -> None:
    files = {file.stem for file in TESTS.glob("*.nix")} - {"default"}

    assert set(NODES) == files
    for about in NODES.values():
        assert all((TESTS / script).exists() for script in about.get("script", ()))


@pytest.mark.timeout(120)
def test_the_scripts_have_the_right_types(tmp_path: Path) -> None:
    if not (TOOLS / "basedpyright").exists():
        pytest.skip("no basedpyright: make .venv/.dev")
    shutil.copy(TESTS / "lib/driver.pyi", tmp_path)
    for test in RUNNABLE:
        (tmp_path / f"script_{test.replace('-', '_')}.py").write_text(whole(test))

    checked = subprocess.run(
        [TOOLS / "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(RUNNABLE)
    said = [
        f"{Path(d['file']).name}:{d['range']['start']['line'] + 1}: {d['message']}"
        for d in report["generalDiagnostics"]
        if d["severity"] == "error"
    ]
    assert not said, "\n".join(said)


def test_a_method_that_the_driver_has_not_is_found(tmp_path: Path) -> None:
    if not (TOOLS / "basedpyright").exists():
        pytest.skip("no basedpyright: make .venv/.dev")
    shutil.copy(TESTS / "lib/driver.pyi", tmp_path)
    misspelt = whole("clone").replace("agent1.succeed(", "agent1.suceed(", 1)
    misspelt += 'agent1.succeed("true", timeout="soon")\n'
    (tmp_path / "misspelt.py").write_text(misspelt)

    checked = subprocess.run(
        [TOOLS / "basedpyright", "--pythonpath", sys.executable, "misspelt.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 1
    assert "suceed" in checked.stdout
    assert "'soon'" in checked.stdout


def test_the_scripts_are_linted(tmp_path: Path) -> None:
    if not (TOOLS / "ruff").exists():
        pytest.skip("no ruff: make .venv/.dev")
    for test in RUNNABLE:
        (tmp_path / f"{test}.py").write_text(whole(test))

    linted = subprocess.run(
        [TOOLS / "ruff", "check", "--isolated", "--select", "E9,F,B,W,PLE", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert linted.returncode == 0, linted.stdout
