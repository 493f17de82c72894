"""`llmgw agent`, where it does not start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_systemd_is_told_why_the_agent_did_not_start(tmp_path: Path) -> None:
    """The journal scrolls away; the status of a failed unit stays."""
    file, notify = tmp_path / "agent.toml", tmp_path / "notify"
    file.write_text('servers = ["ftp://cp1"]\nsttae_dir = "/x"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(notify))
        manager.settimeout(5)

        ended = subprocess.run(
            [sys.executable, "-m", "llmgw", "agent", "--config", str(file)],
            capture_output=True,
            timeout=30,
            cwd=ROOT,
            env=os.environ | {"NOTIFY_SOCKET": str(notify)},
            check=False,
        )

        said = manager.recv(4096).decode()
    assert ended.returncode == 78
    assert said.startswith(f"STATUS=not started: {file}:")
    assert "must be an http:// or https:// address" in said
    assert said.endswith("(and 1 more)")
    assert "\n" not in said
