"""`llmgw engines` on the command line, and through the agent's door."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.door import Request
from llmgw.errors import EngineError
from tests.cli.at_a_door import at_a_door, llmgw
from tests.engines.test_install import SERVER, manifest
from tests.engines.test_unpack import tar


def archive(folder: Path, version: str) -> tuple[Path, str]:
    path = tar(folder / f"{version}.tgz", SERVER, manifest(version=version))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_build_is_installed_listed_and_rolled_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "engines"
    file = tmp_path / "agent.toml"
    file.write_text(f'server = "http://cp:1"\nengines_dir = "{there}"\n')
    for version in ("one", "two"):
        path, digest = archive(tmp_path, version)
        arguments = ("--sha256", digest, "--name", "llama", "--config", file)
        assert llmgw("engines", "install", path, *arguments) == 0

    assert llmgw("engines", "list", "--config", file) == 0
    said = capsys.readouterr().out.splitlines()
    [row] = [line.split() for line in said if f"{there}/.builds/" in line][-1:]
    assert row[:3] == ["llama", "llamacpp", "two"]

    assert llmgw("engines", "rollback", "llama", "--config", file) == 0
    capsys.readouterr()
    assert llmgw("engines", "list", "--json", "--config", file) == 0
    found = json.loads(capsys.readouterr().out)
    [build] = [one for one in found["builds"] if one["name"] == "llama"]
    assert build["version"] == "one"


def test_a_machine_without_a_file_and_without_a_build_is_told_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list was refused for want of a file, without a word of what to do."""
    monkeypatch.setenv("LLMGW_CONFIG", f"{tmp_path}/none.toml")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert llmgw("engines", "list") == 0

    said = capsys.readouterr().err
    assert said.startswith("none in /opt/llmgw/engines, nor on PATH")
    assert "llmgw engines install" in said


def test_a_wrong_sum_installs_nothing(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "one")
    folder = ("--engines-dir", tmp_path / "engines")

    with pytest.raises(EngineError, match="has the SHA-256"):
        llmgw("engines", "install", path, "--sha256", "0" * 64, *folder)


@pytest.mark.parametrize(
    ("was_held", "drain", "words"),
    [
        (True, None, ["a-0 may run"]),
        (False, None, ["a-0 was not stopped by a person: nothing has changed"]),
        (True, {"by_person": True}, ["a-0 may run", "this node drains and starts"]),
    ],
)
async def test_start_says_what_it_changed_and_what_holds_it_still(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    was_held: bool,
    drain: dict[str, bool] | None,
    words: list[str],
) -> None:
    """It said `may run` also while the node drained, and nothing started."""

    async def start(_request: Request) -> AsyncIterator[Any]:
        yield {"was_held": was_held, "drain": drain}

    command = ("engines", "start", "a-0")
    await at_a_door(tmp_path / "agent.sock", {"start": start}, command)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(words)
    assert all(line.startswith(word) for line, word in zip(lines, words, strict=True))


async def test_of_one_that_is_silent_so_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def silent(_request: Request) -> AsyncIterator[Any]:
        for text in ():
            yield text

    command = ("engines", "logs", "a-0")
    await at_a_door(tmp_path / "agent.sock", {"logs": silent}, command)

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("a-0 has written nothing yet; `llmgw engines logs -f")


async def test_stop_start_and_logs_go_through_the_agents_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: Request) -> AsyncIterator[Any]:
        asked.append(dict(request))
        if request["op"] == "logs":
            yield "loading\n"
            yield "ready\n"
        elif request["op"] == "start":
            yield {"was_held": True, "drain": None}
        else:
            yield True

    await at_a_door(
        tmp_path / "agent.sock",
        {"stop": answer, "start": answer, "logs": answer},
        ("engines", "stop", "a-0"),
        ("engines", "start", "a-0"),
        ("engines", "logs", "-f", "a-0"),
    )

    assert asked == [
        {"op": "stop", "replica": "a-0"},
        {"op": "start", "replica": "a-0"},
        {"op": "logs", "replica": "a-0", "follow": True},
    ]
    assert capsys.readouterr().out.endswith("loading\nready\n")
