"""A clock that a test can turn: ten minutes pass, and every timer that is due rings."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Turned:
    """The running event loop's own clock, some seconds ahead of the machine's."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def turn(self, seconds: float) -> None:
        self.ahead += seconds


@contextmanager
def turned() -> Generator[Turned]:
    """Sockets stay real. What guards the test has to be longer than it turns."""
    loop = asyncio.get_running_loop()
    real = loop.time
    clock = Turned()
    loop.time = lambda: real() + clock.ahead  # every timer of the loop asks it
    try:
        yield clock
    finally:
        del loop.time
