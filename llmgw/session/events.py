"""Things that happened, on their way to the control plane."""

import time
from collections import deque
from typing import Any

from llmgw.aio import Latest
from llmgw.wire import Event


class Events:
    """A bounded queue. What does not fit is dropped, the oldest first, and counted.

    A node that is cut off for a day would otherwise remember every line of it.
    """

    def __init__(self, limit: int = 256) -> None:
        self.added = Latest(0)
        self.dropped = 0
        self._waiting: deque[Event] = deque()
        self._limit = limit
        self._seq = 0
        self._untold = 0  # dropped, and not said yet
        self._start = time.monotonic()

    def add(
        self,
        kind: str,
        text: str,
        *,
        replica: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        self._waiting.append(self._event(kind, text, replica, data))
        self._trim()
        self.added.set(self._seq)

    def take(self) -> tuple[Event, ...]:
        """All that wait, oldest first, after how many are missing before them.

        They are the taker's, until they are told or put back.
        """
        events = tuple(self._waiting)
        self._waiting.clear()
        missing, self._untold = self._untold, 0
        if not missing:
            return events
        text = f"{missing} older events were dropped: the queue was full"
        first = self._event("events_dropped", text, None, {"dropped": missing})
        return first, *events

    def put_back(self, batch: tuple[Event, ...]) -> None:
        """The control plane does not have these."""
        for event in reversed(batch):
            if event.kind == "events_dropped" and event.data:
                self._untold += event.data["dropped"]
            else:
                self._waiting.appendleft(event)
        self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > self._limit:
            self._waiting.popleft()
            self.dropped += 1
            self._untold += 1

    def _event(
        self, kind: str, text: str, replica: str | None, data: dict[str, Any] | None
    ) -> Event:
        self._seq += 1
        at = time.monotonic() - self._start
        return Event(
            seq=self._seq, at_s=at, kind=kind, text=text, replica=replica, data=data
        )
