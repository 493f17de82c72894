"""What is asked of systemd about an engine's unit, by a systemctl that says it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.supervisor import systemd
from llmgw.supervisor.cgroup import Cgroup
from llmgw.supervisor.ledger import Identity
from llmgw.supervisor.process import Process
from llmgw.supervisor.systemd import Unit

INVOCATION = "5e1f0d"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as running:
        yield running
        running.kill()


@pytest.mark.parametrize(
    ("invocation", "result", "ooms"),
    [
        (INVOCATION, "oom-kill", 1),
        (INVOCATION, "signal", 0),
        ("another", "oom-kill", None),
    ],
)
def test_an_oom_is_known_though_the_cgroup_went_with_the_unit(
    invocation: str,
    result: str,
    ooms: int | None,
    process: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T63: systemd removes the cgroup, and its count, as soon as it is empty."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f"#!/bin/sh\nprintf 'InvocationID={invocation}\\nResult={result}\\n'\n"
    )
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    identity = Identity.of(process.pid, INVOCATION)
    assert identity
    held = Process("chat-0", "tag", identity, Cgroup(tmp_path / "gone"))
    try:
        assert Unit("chat-0", held, adopted=False).ooms() == ooms
    finally:
        held.close()


def test_a_systemd_that_does_not_answer_ends_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze, and every agent that asked ended, and again at each start."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\nexec sleep 60\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systemd, "TIMEOUT", 0.1)

    asked = systemd.systemctl("start", "x.service")

    assert (asked.returncode, asked.stderr) == (1, "systemd does not answer for 0 s")
    assert systemd.show("chat-0") == {}
    assert systemd.exit_of(systemd.show("chat-0")).unknown
