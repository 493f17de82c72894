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
        self._told_dropped = 0
        self._start = time.monotonic()

    def add(
        self,
        kind: str,
        text: str,
        *,
        replica: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        if len(self._waiting) >= self._limit:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(self._event(kind, text, replica, data))
        self.added.set(self._seq)

    def batch(self) -> tuple[Event, ...]:
        """All that wait, oldest first, and how many are missing before them."""
        events = tuple(self._waiting)
        missing = self.dropped - self._told_dropped
        if not missing:
            return events
        text = f"{missing} older events were dropped: the queue was full"
        first = self._event("events_dropped", text, None, {"dropped": missing})
        return first, *events

    def told(self, batch: tuple[Event, ...]) -> None:
        """The control plane has these."""
        had = {event.seq for event in batch}
        self._waiting = deque(one for one in self._waiting if one.seq not in had)
        for event in batch:
            if event.kind == "events_dropped" and event.data:
                self._told_dropped += event.data["dropped"]

    def _event(
        self, kind: str, text: str, replica: str | None, data: dict[str, Any] | None
    ) -> Event:
        self._seq += 1
        at = time.monotonic() - self._start
        return Event(
            seq=self._seq, at_s=at, kind=kind, text=text, replica=replica, data=data
        )
