"""`llmgw engines` on the command line, and through the agent's door."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.door import Request
from llmgw.cli import parse
from llmgw.errors import EngineError, LlmgwError
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


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_a_build_that_root_installs_or_rolls_back_is_the_agents_to_replace(
    tmp_path: Path,
) -> None:
    there = tmp_path / "engines"
    there.mkdir()
    os.chown(there, 4242, 4242)
    folder = ("--engines-dir", there, "--config", tmp_path / "none.toml")
    (tmp_path / "none.toml").write_text('server = "http://cp:1"\n')
    for version in ("one", "two"):
        path, digest = archive(tmp_path, version)
        arguments = ("--sha256", digest, "--name", "llama", *folder)
        assert llmgw("engines", "install", path, *arguments) == 0
        assert {one.lstat().st_uid for one in there.rglob("*")} == {4242}

    assert llmgw("engines", "rollback", "llama", *folder) == 0
    assert {one.lstat().st_uid for one in there.rglob("*")} == {4242}


def test_a_machine_without_a_file_and_without_a_build_is_told_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list was refused for want of a file, without a word of what to do."""
    monkeypatch.setenv("LLMGW_CONFIG", f"{tmp_path}/none.toml")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert llmgw("engines", "list") == 0

    out, said = capsys.readouterr()
    assert out == ""
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


@pytest.mark.parametrize(
    ("is_ending", "words"), [(True, "a-0 is being stopped; `"), (False, "a-0 does not")]
)
async def test_of_one_that_still_ends_it_is_not_said_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_ending: bool, words: str
) -> None:
    """`a-0 is stopped`, while it took half a minute for it."""

    async def stop(_request: Request) -> AsyncIterator[Any]:
        yield {"is_ending": is_ending}

    command = ("engines", "stop", "a-0")
    await at_a_door(tmp_path / "agent.sock", {"stop": stop}, command)

    said = capsys.readouterr().out
    assert said.startswith(words)
    assert "`llmgw engines start a-0` lets it run again" in said


@pytest.mark.parametrize("verb", ["stop", "start", "logs"])
def test_a_replica_is_named_and_help_says_how_it_is_called(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["engines", verb, ""])
    assert "is empty; `llmgw status` shows the ids" in capsys.readouterr().err

    with pytest.raises(SystemExit):
        parse(["engines", verb, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "as `llmgw status` and `llmgw plan` show it" in told


def logs_of(folder: Path, *more: str) -> tuple[str | Path, ...]:
    """Of b-0, where no agent is to be asked."""
    (folder / "state" / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "agent.toml").write_text(
        f'server = "http://cp:1"\nstate_dir = "{folder}/state"\n'
    )
    where = ("--config", folder / "agent.toml", "--socket", folder / "none.sock")
    return ("engines", "logs", *where, *more)


def test_without_an_agent_a_log_is_read_where_it_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines outlive the agent; when it does not start is when somebody looks."""
    words = logs_of(tmp_path, "b-0")
    path = tmp_path / "state" / "logs" / "b-0.log"
    path.write_text("".join(f"{number}\n" for number in range(300)))

    assert llmgw(*words) == 0

    said = capsys.readouterr()
    assert said.out.split() == [str(number) for number in range(200, 300)]
    assert said.err.strip().endswith(f"none.sock: read from {path}")


@pytest.mark.parametrize("name", ["nope", "../secret"])
def test_a_log_that_is_not_there_is_said_not_to_be(tmp_path: Path, name: str) -> None:
    words = logs_of(tmp_path, name)
    (tmp_path / "state" / "logs" / "b-0.log").touch()
    (tmp_path / "state" / "secret.log").write_text("secret")

    with pytest.raises(LlmgwError, match=f'no log of "{name}" is here') as caught:
        llmgw(*words)

    assert caught.value.fix.startswith("logs are here of b-0; start it with")


async def test_what_the_agent_says_of_a_name_is_not_taken_for_its_absence(
    tmp_path: Path,
) -> None:
    async def refuses(_request: Request) -> AsyncIterator[Any]:
        raise LlmgwError("no such")
        yield

    words = logs_of(tmp_path, "b-0")
    (tmp_path / "state" / "logs" / "b-0.log").write_text("old")

    with pytest.raises(ExceptionGroup) as caught:
        await at_a_door(tmp_path / "agent.sock", {"logs": refuses}, words)

    assert caught.group_contains(LlmgwError, match="no such")


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
            yield {"is_ending": True}

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
