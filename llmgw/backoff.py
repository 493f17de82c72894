"""How long to wait before trying again. Pure: the caller brings the dice."""

from collections.abc import Iterator


def delays(base: float, limit: float) -> Iterator[float]:
    """Seconds: *base*, then twice as long each time, never above *limit*; endless."""
    delay = min(base, limit)
    while True:
        yield delay
        delay = min(delay * 2, limit)


def jittered(delay: float, dice: float) -> float:
    """A wait from the upper half of *delay*; *dice* is drawn evenly from [0, 1).

    Spread out, or every node of a cluster comes back in the same instant.
    """
    return delay * (0.5 + dice / 2)
