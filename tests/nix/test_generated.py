"""What is made from the NixOS module and committed: the same unit, wherever it runs."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.nix.nix import ROOT

sys.path.insert(0, str(ROOT / "packaging"))
import generate


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    if shutil.which("nix-instantiate") is None:
        pytest.skip("no nix-instantiate; Debian: apt-get install nix-bin")
    return generate.made()


def test_the_generated_files_are_current(made: dict[Path, str]) -> None:
    stale = [file.name for file, text in made.items() if file.read_text() != text]

    assert stale == [], "run: python3 packaging/generate.py"


def test_nothing_of_nix_is_in_the_units_for_other_systems(
    made: dict[Path, str],
) -> None:
    units = [text for file, text in made.items() if file.parent.name == "debian"]

    assert len(units) == 5
    assert not any("/nix/store" in text or "/made/" in text for text in units)


def test_what_the_guests_run_is_the_packaged_unit(made: dict[Path, str]) -> None:
    """The nodes' own settings are all that may differ."""
    import json

    nodes = json.loads(made[ROOT / "vm-tests/lite/nodes.json"])
    unit = nodes["failover"]["nodes"]["agent1"]["units"]["llmgw-agent.service"]
    packaged = made[ROOT / "packaging/debian/llmgw-agent.service"]

    difference = set(unit.splitlines()) ^ set(packaged.splitlines())
    assert difference == {"ReadWritePaths=-/opt/llmgw/engines"}
