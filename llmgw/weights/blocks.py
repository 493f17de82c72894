"""Memory for bytes on their way: a number of blocks, lent and given back."""

import threading
from typing import overload

BLOCK = 1024 * 1024


class Blocks:
    """*limit* blocks at most, each made when it is first needed."""

    def __init__(self, limit: int) -> None:
        self._unmade = limit
        self._free: list[memoryview] = []
        self._changed = threading.Condition()

    @overload
    def take(self) -> memoryview: ...

    @overload
    def take(self, within: float) -> memoryview | None: ...

    def take(self, within: float | None = None) -> memoryview | None:
        """One of them; None if for so many seconds none is given back."""
        with self._changed:
            if not self._changed.wait_for(self._has_one, within):
                return None
            if not self._free:
                self._unmade -= 1
                return memoryview(bytearray(BLOCK))
            return self._free.pop()

    def _has_one(self) -> bool:
        return bool(self._free or self._unmade)

    def give(self, block: memoryview) -> None:
        with self._changed:
            self._free.append(block)
            self._changed.notify()
