"""How often something is asked again, and how long it is waited for in between."""

import os
from collections.abc import Callable
from typing import TypeVar

from llmgw.backoff import delays, jittered
from llmgw.weights.faults import Again

T = TypeVar("T")

# So many breaks with nothing in between that arrived, and the server is given up.
PATIENCE = 8
# Longer than this is not waited here: the replica's own back-off is told the reason.
LONGEST_WAIT = 300.0


# Waits so many seconds before something is asked again, and tells why.
Rest = Callable[[float, str], None]


def patiently(ask: Callable[[], T], rest: Rest, attempts: int = PATIENCE) -> T:
    """What *ask* returns. The last Again is raised once it was asked often enough."""
    failures = 0
    while True:
        try:
            return ask()
        except Again as error:
            failures += 1
            if failures >= attempts or is_too_long(error):
                raise
            wait, why = wait_after(failures, error.after), error.what
        rest(wait, why)


def is_too_long(error: Again) -> bool:
    return (error.after or 0) > LONGEST_WAIT


def wait_after(failures: int, after: float | None) -> float:
    """Seconds before the next attempt: what the server asks for, else ever longer.

    The first break is answered at once: mostly it is one connection that died.
    """
    if after is not None:
        return after
    if failures <= 1:
        return 0.0
    steps = delays(1.0, 30.0)
    for _ in range(failures - 2):
        next(steps)
    return jittered(next(steps), int.from_bytes(os.urandom(2), "big") / 65536)
