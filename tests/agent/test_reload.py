"""A wrong file is told as `llmgw check` would: the place, the fault and the fix."""

from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from llmgw.agent import resolve
from llmgw.agent.reload import reread


class Said:
    """What the agent was told of its file."""

    def __init__(self) -> None:
        self.problems: dict[str, tuple[str | None, str, str]] = {}

    def __call__(
        self, code: str, what: str | None, fix: str = "", *, where: str = ""
    ) -> None:
        self.problems[code] = (where, what or "", fix)


@pytest.mark.parametrize(
    ("wrong", "key", "what", "fix"),
    [
        (
            'hostname = "\\u0000"\n',
            "hostname",
            "has a NUL character in it",
            "repair it, then reload",
        ),
        ("lables = {}\n", "lables", "no such setting", "did you mean labels?"),
        (
            'hostname = "\\u0000"\nlables = {}\n',
            "hostname",
            "has a NUL character in it (and 1 more)",
            "repair it, then reload; `llmgw check` tells every fault at once",
        ),
    ],
    ids=["alone", "a typo", "two"],
)
async def test_a_wrong_file_is_told_with_its_line_key_and_fix(
    tmp_path: Path, wrong: str, key: str, what: str, fix: str
) -> None:
    """Said was only `the file was not taken over: no such setting`."""
    file = tmp_path / "agent.toml"
    good = f'node_id = "n1"\nservers = ["127.0.0.1:1"]\nstate_dir = "{tmp_path}"\n'
    await anyio.to_thread.run_sync(file.write_text, good + wrong)
    said = Said()

    found = await reread(partial(resolve.read, file), said)

    assert found is None
    told = f"the file was not taken over: {what}"
    assert said.problems["reload"] == (f"{file}:4: {key}", told, fix)
