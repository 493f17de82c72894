"""What is asked for in one go, and which blocks the hash takes as they come."""

import hashlib
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from llmgw.weights.blocks import BLOCK, Blocks
from llmgw.weights.faults import Again, Cancelled
from llmgw.weights.http import PUBLIC, Client
from llmgw.weights.journal import Begun
from llmgw.weights.origin import Opened, Origin, Reader, Server
from llmgw.weights.part import Part
from llmgw.weights.transfer import AHEAD, Transfer
from llmgw.weights.waiting import PATIENCE
from tests.fakes.weights_server import Crawl, Cut, Status, WeightsServer
from tests.weights.conftest import MIB, noise

PIECE = MIB


class Told(Part):
    """A part that counts what is read back from it."""

    read_back = 0

    def read(self, at: int, view: memoryview) -> int:
        self.read_back += len(view)
        return super().read(at, view)


def nothing(_what: object, _seconds: float) -> None:
    pass


def begun(
    server: WeightsServer,
    tmp_path: Path,
    size: int,
    *,
    blocks: Blocks | None = None,
    clock: Callable[[], float] = time.monotonic,
    again: Callable[[str, float], None] = nothing,
    cancelled: Callable[[], bool] = lambda: False,
    kind: type[Told] = Told,
) -> tuple[Transfer, Told]:
    content = noise(size)
    server.put("/model", content)
    origin = Server(server.url("/model"), PUBLIC)
    client = Client()
    validator = origin.probe(client).validator
    client.close()
    what = Begun(size=size, piece=PIECE, validator=validator, sha256=None, boot="b")
    part = kind(tmp_path / "part", what)
    transfer = Transfer(
        origin,
        part,
        blocks=blocks or Blocks(8),
        hashing=nothing,
        again=again,
        cancelled=cancelled,
        clock=clock,
    )
    return transfer, part


def free(_: int) -> float:
    return 0.0


class Paced(Reader):
    """Reads from a server whose answers begin after *waits* seconds, by its own clock,
    and then come at *rate* bytes a second.
    """

    def __init__(self, *, waits: float, rate: float) -> None:
        super().__init__()
        self.now = 0.0
        self._waits = waits
        self._rate = rate

    @contextmanager
    def range(self, origin: Origin, start: int, end: int) -> Generator[Opened]:
        with super().range(origin, start, end) as opened:
            self.now += self._waits

            def read_into(view: memoryview) -> int:
                count = opened.read_into(view)
                self.now += count / self._rate
                return count

            yield msgspec.structs.replace(opened, read_into=read_into)


def test_a_fast_link_is_asked_for_more_at_once(
    tmp_path: Path, server: WeightsServer
) -> None:
    """The round trip before each range is not paid for every piece."""
    reader = Paced(waits=0.0005, rate=400 * MIB)
    transfer, part = begun(server, tmp_path, 40 * PIECE, clock=lambda: reader.now)
    first = transfer.take()
    assert first is not None
    assert first == range(1)

    transfer.fetch(first, reader, free)
    alone = transfer.take()
    beside = transfer.take(4)
    reader.client.close()
    part.close()

    assert alone is not None
    assert beside is not None
    assert alone[0] == 1
    assert 1 < len(alone) <= 20  # half of what is left: not all of it to one
    assert beside[0] == alone[-1] + 1
    assert 1 <= len(beside) <= AHEAD // 4


def test_a_far_server_is_asked_for_more_than_its_round_trip_brings(
    tmp_path: Path, server: WeightsServer
) -> None:
    """Also beside other connections: else each would wait a third of the time."""
    reader = Paced(waits=0.1, rate=40 * MIB)
    transfer, part = begun(server, tmp_path, 80 * PIECE, clock=lambda: reader.now)
    first = transfer.take()
    assert first is not None

    transfer.fetch(first, reader, free)
    beside = transfer.take(4)
    reader.client.close()
    part.close()

    # What comes in a second, with the wait; 36 would make up for it.
    assert beside == range(1, 9)


def test_a_slow_link_is_asked_piece_by_piece(
    tmp_path: Path, server: WeightsServer
) -> None:
    now = iter(range(0, 10**6, 20))
    transfer, part = begun(server, tmp_path, 40 * PIECE, clock=lambda: float(next(now)))
    transfer.drag_after = 1e9
    reader = Reader()
    first = transfer.take()
    assert first is not None

    transfer.fetch(first, reader, free)
    reader.client.close()
    part.close()

    assert transfer.take() == range(1, 2)


def test_what_comes_in_its_turn_is_not_read_back(
    tmp_path: Path, server: WeightsServer
) -> None:
    transfer, part = begun(server, tmp_path, 6 * PIECE)
    found: list[str] = []
    owner = threading.Thread(
        target=lambda: found.append(transfer.wait(lambda _done: None))
    )
    owner.start()
    reader = Reader()
    while (pieces := transfer.take()) is not None:
        transfer.fetch(pieces, reader, free)
    owner.join(20)
    reader.client.close()
    part.close()

    assert found == [hashlib.sha256(server.files["/model"].content).hexdigest()]
    assert part.read_back <= 2 * PIECE


def test_what_came_before_its_turn_is_read_back(
    tmp_path: Path, server: WeightsServer
) -> None:
    transfer, part = begun(server, tmp_path, 2 * PIECE + 5)
    reader = Reader()
    taken = [transfer.take() for _ in range(3)]
    for pieces in reversed(taken):
        assert pieces is not None
        transfer.fetch(pieces, reader, free)

    found = transfer.wait(lambda _done: None)
    reader.client.close()
    part.close()

    assert found == hashlib.sha256(server.files["/model"].content).hexdigest()
    assert part.read_back >= PIECE


def test_a_slow_block_and_the_hash_do_not_wait_for_each_other(
    tmp_path: Path, server: WeightsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is at the last whole block; less than one lies behind it, and the next
    comes where that ends."""
    monkeypatch.setattr("llmgw.weights.transfer.TURN", 60.0)
    transfer, part = begun(server, tmp_path, 3 * PIECE)
    server.files["/model"].rate = MIB
    found: list[str] = []
    taken = [transfer.take(3) for _ in range(3)]

    def fetch(pieces: range | None) -> None:
        assert pieces is not None
        reader = Reader()
        transfer.fetch(pieces, reader, free)
        reader.client.close()

    fetch(taken[1])
    threads = [threading.Thread(target=fetch, args=(taken[n],)) for n in (0, 2)]
    threads.append(
        threading.Thread(target=lambda: found.append(transfer.wait(lambda _done: None)))
    )
    threads[2].start()
    threads[0].start()
    while part.upto[0] < PIECE // 2:
        threading.Event().wait(0.01)
    threads[1].start()
    for one in threads:
        one.join(20)
    part.close()

    assert found == [hashlib.sha256(server.files["/model"].content).hexdigest()]


def test_a_server_that_sends_no_byte_is_given_up(
    tmp_path: Path, server: WeightsServer
) -> None:
    """Headers are no progress: it would be asked for ever, thousands of times in a
    second, and no mirror after it."""
    now = iter(range(0, 10**9, 1000))
    transfer, part = begun(server, tmp_path, PIECE, clock=lambda: float(next(now)))
    server.spoil("/model", Cut(at=0), times=2 * PATIENCE)
    reader = Reader()

    for _ in range(PATIENCE):
        assert transfer.error is None
        pieces = transfer.take()
        assert pieces is not None
        transfer.fetch(pieces, reader, free)
    reader.client.close()
    part.close()

    assert isinstance(transfer.error, Again)


def test_what_broke_is_told_for_as_long_as_it_is_waited_for(
    tmp_path: Path, server: WeightsServer
) -> None:
    told: list[tuple[str, float]] = []
    until = time.monotonic() + 10
    waiting, part = begun(
        server,
        tmp_path,
        PIECE,
        again=lambda why, seconds: told.append((why, seconds)),
        cancelled=lambda: len(told) == 3 or time.monotonic() > until,
    )
    server.spoil("/model", Status(503, retry_after="60"))
    reader = Reader()
    pieces = waiting.take()
    assert pieces is not None
    waiting.fetch(pieces, reader, free)
    reader.client.close()
    assert told == [("the server answers 503 Service Unavailable", 60.0)]

    with pytest.raises(Cancelled):
        waiting.wait(lambda _done: None)
    part.close()

    assert {why for why, _ in told} == {told[0][0]}
    assert 50 < told[2][1] < told[1][1] < 60


def test_no_block_is_lost_where_a_transfer_fails(
    tmp_path: Path, server: WeightsServer
) -> None:
    """Each would be one less for all who come after, until none is left."""
    blocks = Blocks(4)

    class Failing(Told):
        def put(self, at: int, view: memoryview) -> None:
            super().put(at, view)
            transfer.fail(OSError(5, "elsewhere"))

    transfer, part = begun(server, tmp_path, PIECE, blocks=blocks, kind=Failing)
    reader = Reader()
    pieces = transfer.take()
    assert pieces is not None
    transfer.fetch(pieces, reader, free)
    reader.client.close()
    part.close()

    assert None not in [blocks.take(0.0) for _ in range(4)]


def work(transfer: Transfer, size: int) -> None:
    """As a thread of the pool: take and bring until all is here."""
    reader = Reader()
    while transfer.done < size and transfer.error is None:
        pieces = transfer.take(2)
        if pieces is None:
            threading.Event().wait(0.01)
        else:
            transfer.fetch(pieces, reader, free)
    reader.client.close()


def test_a_connection_far_slower_than_its_siblings_is_dropped_and_its_range_goes_on(
    tmp_path: Path, server: WeightsServer
) -> None:
    """A path through a sick link is never quite silent: it would hold up the end of
    the file by hours."""
    size = 24 * PIECE
    transfer, part = begun(server, tmp_path, size)
    transfer.drag_after = 0.3
    server.spoil("/model", Crawl(rate=20_000))
    before = len(server.requests)
    first = transfer.take()
    assert first is not None
    reader = Reader()

    slow = threading.Thread(
        target=transfer.fetch, args=(first, reader, free), daemon=True
    )
    slow.start()
    while not part.upto[0]:
        threading.Event().wait(0.01)
    sibling = threading.Thread(target=work, args=(transfer, size), daemon=True)
    sibling.start()
    slow.join(10)
    assert not slow.is_alive(), "at its rate the piece takes 52 s"
    sibling.join(10)
    found = transfer.wait(lambda _done: None)
    reader.client.close()
    part.close()

    asked = [r for r in server.requests[before:] if r.start < PIECE]
    assert found == hashlib.sha256(server.files["/model"].content).hexdigest()
    assert [r.start == 0 for r in asked] == [True, False]
    assert asked[0].sent < PIECE
    # It goes on where that one was: what came is not asked for again.
    assert asked[1].start + asked[1].sent >= PIECE


def test_connections_that_are_all_slow_are_left_alone(
    tmp_path: Path, server: WeightsServer
) -> None:
    """Each new one would be as slow, and costs a round trip."""
    size = 2 * PIECE
    transfer, part = begun(server, tmp_path, size)
    transfer.drag_after = 0.1
    server.files["/model"].rate = PIECE
    before = len(server.requests)
    threads = [
        threading.Thread(target=work, args=(transfer, size), daemon=True)
        for _ in range(2)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    found = transfer.wait(lambda _done: None)
    part.close()

    assert found == hashlib.sha256(server.files["/model"].content).hexdigest()
    assert sorted(r.start for r in server.requests[before:]) == [0, PIECE]


def test_blocks_are_lent_and_there_are_no_more() -> None:
    blocks = Blocks(1)
    block = blocks.take()
    began = time.monotonic()

    assert len(block) == BLOCK
    assert blocks.take(0.05) is None
    assert time.monotonic() - began >= 0.05
    blocks.give(block)
    assert blocks.take(0.0) is block
