"""A wrong file is told as `llmgw check` would: the place, the fault and the fix."""

import socket
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from llmgw.agent import resolve
from llmgw.agent.reload import reread
from llmgw.agent.run import Agent


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


async def test_systemd_is_told_of_a_wrong_file_until_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`systemctl reload` succeeds all the same: an agent cannot say that it failed."""
    file = tmp_path / "agent.toml"
    good = f'node_id = "n1"\nservers = ["127.0.0.1:1"]\nstate_dir = "{tmp_path}"\n'
    await anyio.to_thread.run_sync(file.write_text, good)
    resolved = await anyio.to_thread.run_sync(resolve.read, file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        read = partial(resolve.read, file)
        agent = await anyio.to_thread.run_sync(lambda: Agent(resolved, read=read))

        await anyio.to_thread.run_sync(file.write_text, good + "lables = {}\n")
        await agent.reload()
        wrong = [manager.recv(4096).decode() for _ in range(3)]
        await anyio.to_thread.run_sync(file.write_text, good)
        await agent.reload()
        mended = [manager.recv(4096).decode() for _ in range(3)]

    assert wrong[0].startswith("RELOADING=1")
    assert wrong[1].startswith("STATUS=")
    assert f"{file}:4: lables: the file was not taken over: no such" in wrong[1]
    assert wrong[2] == "READY=1"
    assert "lables" not in mended[1]
