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


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_what_root_makes_behind_a_link_is_its_owners(tmp_path: Path) -> None:
    """The cache lay on a larger disk, and all that root fetched stayed root's."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    os.chown(data, AGENT, AGENT)
    cache.symlink_to(data)

    with left_to_owner(cache):
        (cache / "http").mkdir()
        (cache / "http/part").write_text("half")

    assert [owner(data / "http"), owner(data / "http/part")] == [AGENT] * 2
    assert owner(cache) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away: run as root")
def test_a_folder_that_root_makes_is_theirs_who_have_the_one_above(
    tmp_path: Path,
) -> None:
    """`llmgw engines install` by root, before the agent had a folder of builds."""
    state, secret = tmp_path / "state", tmp_path / "secret"
    state.mkdir()
    secret.mkdir()
    os.chown(state, AGENT, AGENT)

    with left_to_owner(state / "engines/new"):
        (state / "engines/new").mkdir(parents=True)
        (state / "engines/new/build").write_text("1")
        (state / "beside").write_text("another's")
        (state / "engines/link").symlink_to(secret)
        (secret / "file").write_text("root's")

    made = ["engines", "engines/new", "engines/new/build", "engines/link"]
    assert [owner(state / name) for name in made] == [AGENT] * 4
    assert owner(state / "beside") == owner(secret) == owner(secret / "file") == 0
