"""When an engine that ended is started again. Pure: the caller brings dice and time."""

from typing import NamedTuple


class Again(NamedTuple):
    """Wait so many seconds. *is_loop*: it has failed so often that a person is needed,
    and the tries go on only at the slowest pace."""

    wait: float
    is_loop: bool


class Restarts:
    """Bad luck is told from a bad launch: by whether it ever served.

    One that served and fell is started again at once, the first time. One that never
    got so far waits from the first. Having served for longer than the longest wait
    makes good for what was before.
    """

    def __init__(
        self, base: float, limit: float, loop_after: int, *, at_once: bool = True
    ) -> None:
        self._base = base
        self._limit = limit
        self._loop_after = loop_after
        self._at_once = at_once
        self.failures = 0

    def ended(self, served: float | None) -> Again:
        """*served*: for how many seconds it was ready; None: never."""
        if served is not None and served > self._limit:
            self.failures = 0
        self.failures += 1
        if self.failures >= self._loop_after:
            return Again(self._limit, True)
        forgiven = self._at_once and served is not None
        if forgiven and self.failures == 1:
            return Again(0.0, False)
        doublings = self.failures - (2 if forgiven else 1)
        return Again(min(self._base * 2.0**doublings, self._limit), False)
