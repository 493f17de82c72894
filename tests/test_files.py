"""Whose a file is that root made where another user works."""

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.files import CLOCK_OF_FILES, left_to_owner

AGENT = 4242


def owner(path: Path) -> int:
    return path.lstat().st_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_what_root_makes_in_the_agents_folder_is_the_agents(tmp_path: Path) -> None:
    """After one `llmgw pull` by root the agent could fetch nothing from that host:
    `cannot be used: Permission denied`.
    """
    secret, cache = tmp_path / "secret", tmp_path / "cache"
    secret.write_text("root's")
    (cache / "http").mkdir(parents=True)
    before = cache / "laid-here-by-root"
    before.write_text("weights")
    os.chown(cache, AGENT, AGENT)
    while time.clock_gettime_ns(CLOCK_OF_FILES) <= before.stat().st_ctime_ns:
        pass  # the next tick of the clock that stamps files, in 10 ms at most

    with suppress(KeyboardInterrupt), left_to_owner(cache):
        (cache / "http/host").mkdir()
        (cache / "http/host/part").write_text("half")
        (cache / "http/link").symlink_to(secret)
        (cache / "second-name").hardlink_to(secret)
        raise KeyboardInterrupt

    made = [cache / "http/host", cache / "http/host/part", cache / "http/link"]
    assert [owner(path) for path in made] == [AGENT] * 3
    assert owner(secret) == owner(before) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_in_roots_own_folder_all_stays_roots(tmp_path: Path) -> None:
    with left_to_owner(tmp_path):
        (tmp_path / "file").touch()
    with left_to_owner(tmp_path / "none"):
        pass

    assert owner(tmp_path / "file") == 0
