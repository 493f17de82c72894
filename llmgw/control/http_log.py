"""What the HTTP library has to say: of a stranger one short line, of ours everything.

Whatever reaches the port is parsed: a TLS hello, a scanner's guess, an agent that is
killed in the middle of a line. The library tells each as an error with its traceback,
and the one that somebody should read drowned in them.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)

# One line in so many seconds, with how many were left out since the last.
QUIET = 60.0
LONGEST = 120


class Seldom:
    """Whether a line may be said now, and how many were not since the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()
        self._unsaid = 0

    def unsaid(self) -> int | None:
        """None: be silent; this one is counted."""
        now = self._clock()
        if now < self._next:
            self._unsaid += 1
            return None
        self._next = now + QUIET
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


class Requests(logging.LoggerAdapter[logging.Logger]):
    """The logger that the HTTP library is given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(log)
        self._seldom = Seldom(clock)

    def debug(self, msg: object, *args: Any, exc_info: Any = None, **more: Any) -> None:
        # TLS spoken to a port without it comes here, and is worth a line.
        if not self._is_theirs(exc_info, args):
            super().debug(msg, *args, exc_info=exc_info, **more)

    def exception(
        self, msg: object, *args: Any, exc_info: Any = True, **more: Any
    ) -> None:
        if not self._is_theirs(exc_info, args):
            super().exception(msg, *args, exc_info=exc_info, **more)

    def _is_theirs(self, error: object, args: tuple[object, ...]) -> bool:
        """Told as such, if it is."""
        if isinstance(error, ConnectionError):
            log.debug("connection ended within a request error=%s", error)
            return True
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return False
        if (unsaid := self._seldom.unsaid()) is not None:
            log.warning(
                "request not understood from=%s error=%r unsaid=%d",
                args[0] if args and args[0] else "the socket",
                _short(error),
                unsaid,
            )
        return True


def _short(error: Exception) -> str:
    text = error.message if isinstance(error, HttpProcessingError) else str(error)
    return " ".join(text.split())[:LONGEST]
