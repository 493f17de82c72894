"""How many connections at once: as many as pay, up to what is allowed.

A far server gives each connection little, and sixteen fetch sixteen times as much. A
near one gives all there is to two, and more of them only take turns. Pure: the
caller brings bytes and time.
"""

WINDOW = 0.3
PAYS = 1.1
HOLD = 5.0


class Width:
    """Doubles while that brings more, goes back when it does not, and asks again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.now = min(2, limit)
        self._before = self.now
        self._rate = 0.0
        self._seen: tuple[int, float] | None = None
        self._hold_until = 0.0

    def saw(self, total: int, at: float) -> None:
        """*total* bytes had come by the time *at*, in seconds."""
        if (
            self._seen is None
            or total < self._seen[0]
            or at - self._seen[1] > 4 * WINDOW
        ):
            # The first look, or there was nothing to do for a while: no rate in that.
            self._seen = (total, at)
            return
        if at - self._seen[1] < WINDOW:
            return
        rate = (total - self._seen[0]) / (at - self._seen[1])
        self._seen = (total, at)
        is_trial = self.now != self._before
        if is_trial and rate < self._rate * PAYS:
            self.now = self._before
            self._hold_until = at + HOLD
        elif at >= self._hold_until:
            self._before = self.now
            self.now = min(self._limit, self.now * 2)
        self._rate = max(rate, self._rate) if self.now == self._before else rate
