"""The threads that move bytes: one budget of connections over all files."""

import threading
import time
from collections.abc import Callable

import msgspec

from llmgw.weights.blocks import Blocks
from llmgw.weights.budget import Budget, Quiet
from llmgw.weights.http import STALL_TIMEOUT
from llmgw.weights.origin import Reader
from llmgw.weights.transfer import Transfer
from llmgw.weights.width import Seen, Width
from llmgw.wire import Progress

# What may wait for the hash, beside the block that each connection fills.
SPARE = 6


class Pool:
    """Up to *connections* threads; each takes some pieces, brings them, takes more."""

    def __init__(
        self,
        connections: int,
        budget: Budget,
        *,
        quiet: Quiet | None = None,
        stall: float = STALL_TIMEOUT,
    ) -> None:
        self._stall = stall
        self._quiet = quiet
        self._connections = connections
        self.budget = budget
        self.blocks = Blocks(connections + SPARE)
        self._changed = threading.Condition()
        self._transfers: list[Transfer] = []
        self._threads = 0
        self._working = 0
        self._width = Width(connections)
        self._seen = Seen()

    def add(self, transfer: Transfer) -> None:
        """Have *transfer* worked on until `remove`."""
        with self._changed:
            self._transfers.append(transfer)
            while self._threads < self._connections:
                self._threads += 1
                threading.Thread(
                    target=self._work, name=f"fetch-{self._threads}", daemon=True
                ).start()
            self._changed.notify_all()

    def wait_until_allowed(
        self, pause: Callable[[float], None], report: Callable[[Progress], None]
    ) -> None:
        """Return outside quiet hours."""
        while self._quiet is not None and self._quiet.holds():
            report(Progress(what=f"waiting for the end of {self._quiet}", done=0))
            pause(1.0)

    def remove(self, transfer: Transfer) -> None:
        with self._changed:
            self._transfers.remove(transfer)

    def _work(self) -> None:
        reader = Reader(self._stall)
        while True:
            transfer, pieces = self._next(reader)
            transfer.fetch(pieces, reader, self._came)
            with self._changed:
                self._working -= 1
                # What broke is on the list again; others may be waiting.
                self._changed.notify_all()

    def _came(self, count: int) -> float:
        with self._changed:
            self._seen = msgspec.structs.replace(
                self._seen, came=self._seen.came + count
            )
            before = self._width.now
            self._width.saw(self._seen, time.monotonic())
            if self._width.now > before:
                self._changed.notify_all()
        return self.budget.take(count)

    def hashed(self, count: int, seconds: float) -> None:
        """So many bytes went through the hash in so long."""
        with self._changed:
            self._seen = msgspec.structs.replace(
                self._seen,
                hashed=self._seen.hashed + count,
                busy=self._seen.busy + seconds,
            )

    def _next(self, reader: Reader) -> tuple[Transfer, range]:
        since = time.monotonic()
        with self._changed:
            while True:
                if self._quiet is not None and self._quiet.holds():
                    reader.client.close()
                    self._changed.wait(1.0)
                    continue
                taken = self._take() if self._working < self._width.now else None
                if taken is not None:
                    self._working += 1
                    return taken
                self._changed.wait(0.25)
                if time.monotonic() - since > 30:
                    reader.client.close()

    def _take(self) -> tuple[Transfer, range] | None:
        for number, transfer in enumerate(self._transfers):
            pieces = transfer.take(self._width.now)
            if pieces is not None:
                # The next piece is another file's, if there is one: a large file does
                # not hold up the small ones beside it.
                self._transfers.append(self._transfers.pop(number))
                return transfer, pieces
        return None
