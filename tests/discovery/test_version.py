"""Engines are asked who they are, and may hang at that."""

from pathlib import Path

import pytest

from llmgw.discovery import version


def program(folder: Path, script: str) -> str:
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "said", "known"),
    [
        ("llamacpp", "version: 5510 (a1b2c3d)", "5510"),
        ("vllm", "INFO loading\nvllm 0.9.1", "0.9.1"),
        ("sglang", "0.4.6.post1", "0.4.6.post1"),
    ],
)
def test_a_version(tmp_path: Path, kind: str, said: str, known: str) -> None:
    found = version.ask(kind, program(tmp_path, f"echo '{said}' >&2"))
    assert found.value["version"] == known


def test_devices_are_features(tmp_path: Path) -> None:
    said = "ggml_cuda_init: found 1 CUDA devices:\nversion: 1 (x)"
    found = version.ask("llamacpp", program(tmp_path, f"echo '{said}'"))
    assert found.value["features"] == ["cuda"]


def test_one_that_cannot_run_is_a_reason(tmp_path: Path) -> None:
    assert "cannot be run" in version.ask("vllm", str(tmp_path / "no")).reason
    said = version.ask("llamacpp", program(tmp_path, "echo no such flag; exit 1"))
    assert "no such flag" in said.reason


def test_one_that_never_stops_talking_is_cut_short(tmp_path: Path) -> None:
    found = version.ask("llamacpp", program(tmp_path, "exec yes version: 5510"))

    assert found.value["version"] == "5510"


def test_another_program_has_another_stamp(tmp_path: Path) -> None:
    first = version.stamp(program(tmp_path, "true"))
    assert version.stamp(program(tmp_path, "echo longer")) != first
