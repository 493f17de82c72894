"""What is typed is understood, or refused with the usage of what was typed."""

from pathlib import Path

import pytest

from llmgw.cli import parse
from llmgw.cli._file import named_in
from llmgw.errors import ConfigError, LlmgwError
from tests.cli.at_a_door import llmgw

BY_ANY_NAME = ("check", "doctor", "explain", "survey", "agent", "engines list")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [*BY_ANY_NAME, "weights list"])
def test_the_file_is_named_in_either_way(command: str) -> None:
    """`engines list FILE`, `weights list --config FILE` and others were refused."""
    for words in (["x.toml"], ["--config", "x.toml"]):
        assert named_in(parse([*command.split(), *words])) == Path("x.toml")


@pytest.mark.parametrize("command", [*BY_ANY_NAME, "weights list"])
def test_two_files_are_one_too_many(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor A --config B` looked at A, and said nothing of B."""
    said = refused(capsys, *command.split(), "a.toml", "--config", "b.toml")

    assert said.startswith(f"usage: llmgw {command} ")
    assert "not allowed with argument" in said


@pytest.mark.parametrize(
    "command",
    ["engines install U --sha256 S", "engines rollback N", "pull S", "weights pin N"],
)
def test_where_there_is_another_argument_the_option_names_it(command: str) -> None:
    arguments = parse([*command.split(), "--config", "x.toml"])

    assert named_in(arguments) == Path("x.toml")


def test_one_before_the_verb_and_one_behind_are_two(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match="both named"):
        llmgw("weights", "--config", "b.toml", "list", "a.toml")
    # What was said before the verb stands.
    with pytest.raises(ConfigError, match="No such file") as caught:
        llmgw("weights", "--config", tmp_path / "b.toml", "list")
    assert caught.value.where == str(tmp_path / "b.toml")


@pytest.mark.parametrize(
    "words",
    [
        ["weights", "--json", "--cache", "c", "list"],
        ["weights", "list", "--json", "--cache", "c"],
        ["weights", "--json", "list", "--cache", "c"],
    ],
)
def test_what_holds_for_every_verb_stands_before_it_or_behind(words: list[str]) -> None:
    arguments = parse(words)

    assert (arguments.json, arguments.cache) == (True, Path("c"))


def test_so_it_does_in_pki() -> None:
    before = parse(["pki", "--dir", "d", "--json", "init"])
    behind = parse(["pki", "init", "--dir", "d", "--json"])

    assert (before.dir, before.json) == (behind.dir, behind.json) == (Path("d"), True)
    assert parse(["pki", "init"]).dir == Path("pki")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["status", "x"], "status"),
        (["engines", "logs", "--bogus", "x"], "engines logs"),
        (["engines", "list", "a", "b"], "engines list"),
        (["weights", "pin", "--bogus", "x"], "weights pin"),
        (["weights", "--bogus", "list"], "weights"),
        (["pki", "issue"], "pki issue"),
        (["doctor", "a", "b"], "doctor"),
        (["--bogus"], ""),
    ],
)
def test_the_usage_is_that_of_the_command(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was `usage: llmgw [-h] [--version] COMMAND ...`, which helps nobody."""
    said = refused(capsys, *words)

    assert said.startswith(f"usage: llmgw {command}".rstrip() + " [-h]")


def test_a_negative_duration_is_a_value_and_no_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "drain", "--stop-after", "-5s")

    assert "must be no less than zero, not -5s" in said
    # Behind -- nothing is an option.
    assert parse(["weights", "pin", "--", "--x", "-5"]).names == ["--x", "-5"]
