"""The project is held to its word."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llmgw.errors
from llmgw.cli import names

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "llmgw").rglob("*.py"))
LONGEST = 400


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_a_module_can_be_read_in_one_sitting(module: Path) -> None:
    lines = module.read_text().count("\n")

    assert lines <= LONGEST, f"{lines} lines: split it where the story has two parts"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_a_module_says_what_it_is_for(module: Path) -> None:
    doc = ast.get_docstring(ast.parse(module.read_text()))

    assert doc, "the first line is its caption"


def test_every_error_is_in_the_picture_and_raised_somewhere() -> None:
    picture = llmgw.errors.__doc__ or ""
    source = "\n".join(m.read_text() for m in MODULES if m.name != "errors.py")
    parents = {"LlmgwError", "SessionError"}
    classes = {
        name
        for name, value in vars(llmgw.errors).items()
        if isinstance(value, type) and issubclass(value, llmgw.errors.LlmgwError)
    }

    assert {name for name in classes if name not in picture} == set()
    assert {name for name in classes - parents if f"{name}(" not in source} == set()


@pytest.mark.parametrize("command", names())
def test_every_command_has_a_help_with_an_example(command: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "llmgw", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout

    assert f"llmgw {command}" in shown.partition("example")[2]


def test_wrong_usage_is_exit_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmgw", "dance"],
        check=False,
        capture_output=True,
        cwd=ROOT,
    )

    assert done.returncode == 2


DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_says_to_type_can_be_typed(page: Path) -> None:
    """`python` is another one, or none, where nobody has activated anything; a module
    or a target that is gone was found by the reader.
    """
    text = page.read_text()
    targets = set(
        re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )

    bare = re.findall(r"(?<!\.venv/bin/)\bpython3? -m (?:tests|llmgw)\S*", text)
    modules = re.findall(r"\bpython3? -m ((?:tests|llmgw)[\w.]*)", text)
    made = re.findall(r"`make ([a-z-]+)", text) + re.findall(
        r"^    make ([a-z-]+)", text, re.MULTILINE
    )

    assert bare == []
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    for target in made:
        one_of = re.sub("-.*", "-%", target)
        assert target in targets or one_of in targets, target
