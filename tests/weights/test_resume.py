"""What a crash leaves is gone on with; what another process does is waited for."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from llmgw.weights.journal import Begun, Journal, read
from llmgw.weights.order import Done, Working
from llmgw.weights.parts import WORK
from tests.fakes.weights_server import File, Hang, Request, WeightsServer
from tests.weights.conftest import MIB, noise
from tests.weights.process import FetchProcess

BEGUN = Begun(size=100, piece=50, validator=None, sha256=None, boot="this")


def until(process: FetchProcess, done: int) -> None:
    """Read along until so many bytes have come."""
    while said := process.next():
        if isinstance(said, Working) and said.progress.done >= done:
            return
    raise AssertionError("it ended before")


def slow(
    server: WeightsServer, size: int, rate: float = 20 * MIB
) -> tuple[bytes, File]:
    content = noise(size)
    file = server.put("/model", content)
    file.rate = rate / 8  # by connection
    return content, file


def test_after_a_kill_the_rest_is_fetched_and_no_more(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T69, T70: killed at 60 %, it goes on from there; nothing is removed by hand."""
    content, file = slow(server, 24 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    with FetchProcess(tmp_path) as first:
        first.ask(server.url("/model"), digest)
        until(first, len(content) * 6 // 10)
    file.rate = None
    server.hang_up()  # or what the killed one had asked for is sent, and counted, yet
    before = server.sent()

    with FetchProcess(tmp_path) as second:
        second.ask(server.url("/model"), digest)
        ended = second.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == content
    assert server.sent() - before <= len(content) * 45 // 100
    assert server.sent() <= len(content) * 105 // 100
    assert not list((tmp_path / WORK).glob("*/*"))


def test_two_processes_make_one_transfer(tmp_path: Path, server: WeightsServer) -> None:
    """T68, T74: no lock is asked of the file system, and still one fetches."""
    content, _ = slow(server, 12 * MIB)
    with FetchProcess(tmp_path) as one, FetchProcess(tmp_path) as two:
        one.ask(server.url("/model"))
        until(one, MIB)
        two.ask(server.url("/model"))
        paths = {ended.path for p in (one, two) if isinstance(ended := p.ended(), Done)}

    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == content
    assert server.sent() <= len(content) + 1


def test_a_waiter_takes_over_from_one_that_dies(
    tmp_path: Path, server: WeightsServer
) -> None:
    content, file = slow(server, 24 * MIB)
    with FetchProcess(tmp_path) as one, FetchProcess(tmp_path) as two:
        one.ask(server.url("/model"))
        until(one, 8 * MIB)
        two.ask(server.url("/model"))
        said = two.next()
        assert isinstance(said, Working)
        assert said.progress.what == f"fetched by {os.uname().nodename}, pid {one.pid}"
        one.kill()
        file.rate = None
        ended = two.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == content
    assert server.sent() <= len(content) * 105 // 100


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root: use sudo")
def test_a_stopped_one_that_wakes_up_harms_nothing(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T68: the claim stands still, another takes it, and then the first goes on."""
    content, file = slow(server, 24 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    other = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with (
        FetchProcess(tmp_path, silence=2.0) as one,
        FetchProcess(tmp_path, silence=2.0, prefix=other) as two,
    ):
        one.ask(server.url("/model"), digest)
        until(one, 8 * MIB)
        os.kill(one.pid, signal.SIGSTOP)
        two.ask(server.url("/model"), digest)
        file.rate = None
        second = two.ended()
        assert isinstance(second, Done)
        there = Path(second.path)
        inode = there.stat().st_ino
        os.kill(one.pid, signal.SIGCONT)
        first = one.ended()

    assert isinstance(first, Done)
    assert first.path == second.path
    assert there.read_bytes() == content
    assert there.stat().st_ino == inode
    assert not list((tmp_path / WORK).glob("*/*"))


def test_bytes_of_an_older_version_are_not_mixed_in(
    tmp_path: Path, server: WeightsServer
) -> None:
    content, _ = slow(server, 16 * MIB)
    with FetchProcess(tmp_path) as first:
        first.ask(server.url("/model"))
        until(first, 8 * MIB)
    newer = noise(16 * MIB, seed=2)
    server.put("/model", newer)

    with FetchProcess(tmp_path) as second:
        second.ask(server.url("/model"))
        ended = second.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == newer != content


def test_a_file_that_changes_on_the_way_is_begun_anew(
    tmp_path: Path, server: WeightsServer
) -> None:
    old, newer = noise(20 * MIB), noise(20 * MIB, seed=2)

    def change(request: Request) -> None:
        if request.start >= 8 * MIB:
            file.before_answer = None
            file.content, file.etag = newer, '"newer"'

    file = server.put("/model", old)
    file.before_answer = change
    with FetchProcess(tmp_path) as process:
        process.ask(server.url("/model"))
        ended = process.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == newer


def test_a_server_that_falls_silent_is_left_and_asked_again(
    tmp_path: Path, server: WeightsServer
) -> None:
    content = noise(20 * MIB)
    server.put("/model", content)
    server.spoil("/model", Hang(at=3 * MIB), times=2)

    with FetchProcess(tmp_path, stall=0.5) as process:
        process.ask(server.url("/model"))
        ended = process.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == content
    assert server.sent() <= len(content) + 1


def test_after_a_power_cut_only_what_was_synced_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", BEGUN, [0, 0])
    journal.wrote(0, 30)
    synced = journal.written
    journal.wrote(0, 50)
    journal.wrote(1, 10)
    journal.synced(synced)
    journal.wrote(1, 20)
    journal.close()

    assert read(tmp_path / "j", "this") == (BEGUN, {0: 50, 1: 20})
    assert read(tmp_path / "j", "another boot") == (BEGUN, {0: 30})


def test_a_torn_line_ends_what_is_believed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", BEGUN, [10, 0])
    journal.wrote(0, 20)
    journal.close()
    with (tmp_path / "j").open("ab") as file:
        file.write(b"w 0 5\0\0\nw 1 50\nw 0 5")

    assert read(tmp_path / "j", "this") == (BEGUN, {0: 20})


def test_after_a_power_cut_what_was_not_synced_is_fetched_again(
    tmp_path: Path, server: WeightsServer
) -> None:
    """T70: another boot, and holes where the kernel had not written yet."""
    content, file = slow(server, 24 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    with FetchProcess(tmp_path) as first:
        first.ask(server.url("/model"), digest)
        until(first, 12 * MIB)
    (journal,) = (tmp_path / WORK).rglob("*.journal")
    head, _, lines = journal.read_bytes().partition(b"\n")
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert boot in head
    journal.write_bytes(head.replace(boot, b"0" * len(boot)) + b"\n" + lines)
    part = journal.with_suffix("")
    part.write_bytes(bytes(part.stat().st_size))
    file.rate = None
    server.hang_up()  # or what the killed one had asked for is sent, and counted, yet
    before = server.sent()

    with FetchProcess(tmp_path) as second:
        second.ask(server.url("/model"), digest)
        ended = second.ended()

    assert isinstance(ended, Done)
    assert Path(ended.path).read_bytes() == content
    # All of it, and once: believed, the holes would be found by the digest only.
    assert server.sent() - before <= len(content) + 2
