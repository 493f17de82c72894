"""A file from a server that sends all of it or nothing: no ranges, no resume."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from llmgw.weights.blocks import BLOCK
from llmgw.weights.budget import Budget
from llmgw.weights.faults import Again, Cancelled, Denied
from llmgw.weights.origin import Origin, Reader
from llmgw.weights.part import SYNC_EVERY, disk_fault


class Stream:
    """One reader, which starts at the first byte every time."""

    def __init__(
        self,
        origin: Origin,
        path: Path,
        *,
        budget: Budget,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None],
    ) -> None:
        self._origin = origin
        self._path = path
        self._budget = budget
        self._cancelled = cancelled
        self._progress = progress
        self._pause = threading.Event()  # never set: time.sleep by another name

    def fetch(self, *, has_digest: bool) -> str:
        """Bring it to the disk, synced; its SHA-256. Again if it broke on the way."""
        reader = Reader()
        try:
            opened = self._origin.open_all(reader.client)
            if not (opened.is_framed or has_digest):
                # It ends when the server hangs up, whole or not: nobody could tell.
                raise Denied(
                    "the server does not say how long the file is",
                    fix="give the file's sha256",
                )
            with self._path.open("wb") as file:
                digest, count = self._copy(opened.read_into, file.fileno())
                if opened.length not in (None, count):
                    raise Again(
                        f"the answer ended after {count} of {opened.length} bytes"
                    )
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_fault(error, self._path) from error
        else:
            return digest
        finally:
            reader.client.close()

    def _copy(
        self, read_into: Callable[[memoryview], int], file: int
    ) -> tuple[str, int]:
        digest, total, unsynced = hashlib.sha256(), 0, 0
        block = memoryview(bytearray(BLOCK))
        while count := read_into(block):
            if self._cancelled():
                raise Cancelled
            view = block[:count]
            digest.update(view)
            while view:
                view = view[os.write(file, view) :]
            total += count
            unsynced += count
            if unsynced >= SYNC_EVERY:
                os.fdatasync(file)
                unsynced = 0
            self._progress(total)
            self._pause.wait(self._budget.take(count))
        return digest.hexdigest(), total
