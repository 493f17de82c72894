"""How many connections at once: as many as pay, up to what is allowed.

A far server gives each connection little, and sixteen fetch sixteen times as much. A
near one gives all there is to one or two, and more of them only take turns. Pure: the
caller brings bytes and time.
"""

from msgspec import Struct

WINDOW = 0.3
PAYS = 1.1
HOLD = 5.0
LONGEST_HOLD = 60.0


class Seen(Struct, frozen=True, kw_only=True):
    """Bytes that came, bytes that were hashed, and the seconds that hashing took."""

    came: int = 0
    hashed: int = 0
    busy: float = 0.0


class Width:
    """Doubles while that brings more, goes back when it does not, and asks again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.now = 1
        self._before = 1
        self._rate = 0.0
        self._last: tuple[Seen, float] | None = None
        self._hold = HOLD
        self._hold_until = 0.0

    def saw(self, seen: Seen, at: float) -> None:
        """So much had happened by the time *at*, in seconds."""
        if self._last is None or at - self._last[1] > 4 * WINDOW:
            # The first look, or there was nothing to do for a while: no rate in that.
            self._last = (seen, at)
            return
        seconds = at - self._last[1]
        if seconds < WINDOW:
            return
        rate = _brought(self._last[0], seen, seconds) / seconds
        self._last = (seen, at)
        if self.now != self._before:
            self._judge(rate, at)
        else:
            self._rate = rate
        if at >= self._hold_until:
            self._before = self.now
            self.now = min(self._limit, self.now * 2)

    def _judge(self, rate: float, at: float) -> None:
        """Whether the last doubling brought more."""
        if rate >= self._rate * PAYS:
            self._rate, self._hold = rate, HOLD
            return
        self.now = self._before
        self._hold_until = at + self._hold
        # Each trial costs a little, and what did not pay rarely does a moment later.
        self._hold = min(2 * self._hold, LONGEST_HOLD)


def _brought(before: Seen, now: Seen, seconds: float) -> int:
    """What the window brought: where the hash has much to do, only what it did too.

    On a link faster than this machine, more connections bring more bytes that then
    wait for the hash, and take from it the core that it needs.
    """
    came = now.came - before.came
    if now.busy - before.busy < seconds / 2:
        return came
    return min(came, now.hashed - before.hashed)
