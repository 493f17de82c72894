"""A clock that is wrong, and put right: libfaketime stands between agent and machine.

A time namespace would not do: it moves the clocks that count from the boot, and not the
one on the wall.
"""

from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from tests.fakes.certified import authority, server_side, settings
from tests.fakes.hosts import Host
from tests.fakes.linked import running
from tests.fakes.wired import control_plane, node_on

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
pytestmark = pytest.mark.skipif(
    not LIBRARIES, reason="needs libfaketime: apt-get install faketime"
)


class Clock:
    """How far a node's clock is off, as its library reads it from a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set("+0")

    def set(self, off: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{off}\n")
        new.replace(self._file)

    async def step(self, off: str) -> None:
        await anyio.to_thread.run_sync(self.set, off)

    @property
    def env(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            # As a clock that is set: what counts from the boot goes on.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "off")


async def test_a_node_whose_clock_is_years_behind_says_so_and_joins_once_it_is_set(
    tmp_path: Path, wired: tuple[Host, Host], clock: Clock
) -> None:
    """T40: it is the same agent before and after, and it never ceased to try."""
    node, beyond = wired
    in_thread = anyio.to_thread.run_sync
    folder = await in_thread(authority, tmp_path / "pki")
    side = await in_thread(partial(server_side, folder, sans=("10.77.0.1",)))
    tls = await in_thread(settings, folder)
    files = [Path(str(one)) for one in (tls.cert_file, tls.key_file, tls.ca_file)]
    await clock.step("-15y")
    one = control_plane(beyond, "10.77.0.1", tls=side)
    async with (
        running(one, limit=20),
        node_on(node, tmp_path, one.url, tls=files, env=clock.env) as mine,
    ):
        amiss = await mine.until(state="disconnected")
        await clock.step("+0")
        await mine.until(state="connected", wanted=1)
        await one.hears("heartbeat", 2)

    said = amiss["tried"][one.url]
    assert "not yet valid by this machine's clock, which says 20" in said


async def test_a_clock_that_jumps_years_disturbs_no_session(
    tmp_path: Path, wired: tuple[Host, Host], clock: Clock
) -> None:
    """T40, T43: no rule looks at the wall; of the difference a person is told."""
    node, beyond = wired
    one = control_plane(beyond, "10.77.0.1")
    async with (
        running(one, limit=20),
        node_on(node, tmp_path, one.url, env=clock.env) as mine,
    ):
        await mine.until(state="connected", wanted=1)
        for off in ("-15y", "+30y", "-2d"):
            await clock.step(off)
            await one.hears("heartbeat", len(one.heard("heartbeat")) + 5)

    assert len(one.heard("register")) == 1
