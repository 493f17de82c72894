"""Engine builds: listed and asked in children, whatever their programs do."""

from pathlib import Path
from typing import Any

import pytest

from llmgw.agent import builds
from llmgw.agent.builds import Builds
from llmgw.config.keys import Config, Discovery, Engines, Vllm

NOTHING: dict[str, Any] = {}


def program(folder: Path, script: str) -> Path:
    path = folder / "vllm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def config(folder: Path, binary: Path, limit: float = 10.0) -> Config:
    return Config(
        servers=(),
        engines_dir=str(folder / "engines"),
        engines=Engines(vllm=Vllm(path=str(binary))),
        discovery=Discovery(probe_timeout=limit),
    )


def named(found: Any) -> dict[str, Any]:
    """The one that the file names; this machine may have others on PATH."""
    (one,) = [build for build in found.value if build["name"] == "(path)"]
    return one


def test_a_program_is_asked_once_for_each_change_of_it(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    settings = config(tmp_path, program(tmp_path, f"echo x >> {asked}; echo 0.9.1"))
    probe = Builds()

    first = probe.survey(settings, NOTHING)
    again = probe.survey(settings, first.memory)
    program(tmp_path, f"echo x >> {asked}; echo vllm 0.10.0")
    changed = probe.survey(settings, again.memory)

    assert named(first)["version"] == named(again)["version"] == "0.9.1"
    assert named(changed)["version"] == "0.10.0"
    assert asked.read_text().split() == ["x", "x"]


def test_a_program_that_hangs_is_ended_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T84's kin: each survey would start another beside it. Later it is asked again."""
    asked = tmp_path / "asked"
    script = f"echo x >> {asked}; sleep 60 & wait"
    settings = config(tmp_path, program(tmp_path, script), 1.0)
    monkeypatch.setattr(builds, "PATIENCE", 0.5)
    probe = Builds()

    first = probe.survey(settings, NOTHING)
    again = probe.survey(settings, first.memory)

    assert "has not answered" in named(first)["reason"]
    assert named(again)["reason"] == named(first)["reason"]
    assert [t.code for t in again.troubles if t.where == named(again)["binary"]] == [
        "broken_build"
    ]
    assert asked.read_text().split() == ["x"]
    monkeypatch.setattr(builds, "LATE", -1.0)
    probe.survey(settings, probe.survey(settings, NOTHING).memory)
    assert asked.read_text().split() == ["x", "x", "x"]


def test_one_that_cannot_be_run_is_named_with_the_reason(tmp_path: Path) -> None:
    found = Builds().survey(config(tmp_path, tmp_path / "none"), NOTHING)

    assert "No such file" in named(found)["reason"]
    assert str(tmp_path / "none") in {trouble.where for trouble in found.troubles}


def test_those_of_engines_dir_say_themselves_what_they_are(tmp_path: Path) -> None:
    home = tmp_path / "engines/mine"
    home.mkdir(parents=True)
    (home / "run").write_text("never run")
    (home / "manifest.json").write_text(
        '{"engine": "command", "binary": "run", "version": "7", "features": ["x"]}'
    )
    (tmp_path / "engines/broken").mkdir()
    (tmp_path / "engines/broken/manifest.json").write_text("{")

    found = Builds().survey(config(tmp_path, tmp_path / "none"), NOTHING)

    (one,) = [build for build in found.value if build["name"] == "mine"]
    assert (one["version"], one["features"]) == ("7", ["x"])
    broken = [t for t in found.troubles if "broken" in t.where]
    assert [trouble.code for trouble in broken] == ["broken_build"]
