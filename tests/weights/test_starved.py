"""Little memory, no locks, no room for one more file: what a node may be like."""

import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.weights.order import Done, Failed, Working
from llmgw.weights.parts import WORK
from tests.bench.weights import NAME, serving
from tests.fakes.weights_server import WeightsServer
from tests.weights.conftest import MIB, noise
from tests.weights.process import FetchProcess
from tests.weights.test_memory import peak_mib

SHIM = """\
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int fd, int how) { errno = ENOLCK; return -1; }
int lockf(int fd, int how, off_t n) { errno = ENOLCK; return -1; }
int fcntl(int fd, int cmd, ...) {
  va_list rest; va_start(rest, cmd); long with = va_arg(rest, long); va_end(rest);
  if (cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW) {
    errno = ENOLCK; return -1;
  }
  return syscall(SYS_fcntl, fd, cmd, with);
}
int fcntl64(int fd, int cmd, ...) {
  va_list rest; va_start(rest, cmd); long with = va_arg(rest, long); va_end(rest);
  return fcntl(fd, cmd, with);
}
"""


@pytest.fixture
def cramped() -> Iterator[Path]:
    """A memory cgroup of 512 MiB, of either version."""
    folder, limit = _group()
    name = folder / f"llmgw-test-{secrets.token_hex(4)}"
    try:
        name.mkdir()
        (name / limit).write_text(str(512 * MIB))
    except OSError as error:
        if name.exists():
            name.rmdir()
        pytest.skip(f"no memory cgroup can be made ({error}): be root, and delegate it")
    yield name
    name.rmdir()


def _group() -> tuple[Path, str]:
    one = Path("/sys/fs/cgroup/memory")
    if one.is_dir():
        return one, "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup"), "memory.max"


def reached(group: Path) -> int:
    """How often the limit was met."""
    one = group / "memory.failcnt"
    if one.exists():
        return int(one.read_text())
    events = (group / "memory.events").read_text().split()
    return int(events[events.index("max") + 1])


def test_a_file_larger_than_the_cgroup_comes_whole(
    tmp_path: Path, cramped: Path
) -> None:
    """T75: 640 MiB through 512, page cache and all; the process itself takes 150."""
    there = tmp_path / "served"
    with there.open("wb") as file:
        file.truncate(640 * MIB)
    with there.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    def join() -> None:
        (cramped / "cgroup.procs").write_text(str(os.getpid()))

    with (
        serving(there, sha256, 0.0) as base,
        FetchProcess(tmp_path / "cache", limit=join) as process,
    ):
        process.ask(base + NAME, sha256)
        ended = process.ended()
        peak = peak_mib(process.pid)

    assert isinstance(ended, Done)
    assert Path(ended.path).stat().st_size == 640 * MIB
    assert peak <= 150
    assert reached(cramped) > 0


@pytest.fixture
def lockless(tmp_path: Path) -> tuple[str, ...]:
    """A prefix for a command that gets ENOLCK from every lock it asks for."""
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    try:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source], check=True)
    except FileNotFoundError:
        pytest.skip(
            "locks are taken away by a small library: apt install gcc libc6-dev"
        )
    return ("env", f"LD_PRELOAD={shim}")


def test_two_without_locks_make_one_right_file(
    tmp_path: Path, server: WeightsServer, lockless: tuple[str, ...]
) -> None:
    """T68, T69: no lock can be had; the second waits, and takes over."""
    locks = "import fcntl; fcntl.flock(0, fcntl.LOCK_EX)"
    refused = subprocess.run(
        [*lockless, sys.executable, "-c", locks],
        check=False,
        capture_output=True,
        text=True,
    )
    assert "No locks available" in refused.stderr
    content = noise(24 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    file = server.put("/model", content)
    file.rate = 4 * MIB
    cache = tmp_path / "cache"

    with (
        FetchProcess(cache, prefix=lockless) as one,
        FetchProcess(cache, prefix=lockless) as two,
    ):
        one.ask(server.url("/model"), digest)
        while not (isinstance(said := one.next(), Working) and said.progress.done):
            assert said is not None
        two.ask(server.url("/model"), digest)
        said = two.next()
        assert isinstance(said, Working)
        assert said.progress.what.endswith(f"pid {one.pid}")
        one.kill()
        file.rate = None
        ended = two.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == content
    assert not list((cache / WORK).glob("*/*"))


@pytest.mark.parametrize("inodes", range(2, 13))
def test_a_disk_without_room_for_one_more_file_says_so_at_any_stage(
    tmp_path: Path, server: WeightsServer, inodes: int
) -> None:
    """T71: ENOSPC at the claim, the part, its journal, the folder, the marker."""
    content = noise(100_000)
    digest = hashlib.sha256(content).hexdigest()
    server.put("/model", content)
    folder = tmp_path / "small"
    folder.mkdir()
    options = f"size=8m,nr_inodes={inodes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs needs root: use sudo")
    try:
        with FetchProcess(folder) as process:
            process.ask(server.url("/model"), digest)
            ended = process.ended()
            if isinstance(ended, Failed):
                assert "No space left" in ended.what
                assert not list(folder.rglob("llmgw-complete.json"))
                more = ["mount", "-o", "remount,nr_inodes=100", str(folder)]
                subprocess.run(more, check=True)
                process.ask(server.url("/model"), digest, 2)
                ended = process.ended()

        assert isinstance(ended, Done)
        assert Path(ended.path).read_bytes() == content
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
