"""Every Nix file can be read, and the lock names what the flake wants."""

import json
import re
from pathlib import Path

import pytest

from tests.nix.nix import NIX_FILES, ROOT, run


def test_every_nix_file_parses(tmp_path: Path) -> None:
    answer = run(tmp_path, "--parse", *map(str, NIX_FILES))

    assert answer.returncode == 0, answer.stderr
    assert len(NIX_FILES) > 10


NIXOS_MD = (ROOT / "docs/nixos.md").read_text()
SNIPPETS: list[str] = re.findall(r"```nix\n(.*?)```", NIXOS_MD, re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_what_the_docs_say_to_write_can_be_read(snippet: str, tmp_path: Path) -> None:
    """A whole file, or lines that go into a module."""
    whole, lines = tmp_path / "whole.nix", tmp_path / "lines.nix"
    whole.write_text(snippet)
    lines.write_text("{ config, pkgs, ... }: {\n" + snippet + "}\n")

    answers = [run(tmp_path, "--parse", str(file)) for file in (whole, lines)]

    assert any(answer.returncode == 0 for answer in answers), answers[-1].stderr


def test_a_broken_file_does_not_parse(tmp_path: Path) -> None:
    broken = tmp_path / "broken.nix"
    broken.write_text("{ a = ; }")

    assert run(tmp_path, "--parse", str(broken)).returncode != 0


def test_the_lock_pins_the_one_input_that_the_flake_names() -> None:
    lock = json.loads((ROOT / "flake.lock").read_text())
    flake = (ROOT / "flake.nix").read_text()
    original = lock["nodes"]["nixpkgs"]["original"]

    assert set(lock["nodes"]) == {"root", "nixpkgs"}
    assert f'"github:{original["owner"]}/{original["repo"]}/{original["ref"]}"' in flake
