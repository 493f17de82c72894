"""What a transfer meets, told apart by what is done about it.

Inside the fetch process only: what leaves it is a WeightsError.
"""


class Again(Exception):
    """This attempt is over, the next may do: a reset, a stall, a 503.

    *after* is what the server asked for with Retry-After, in seconds.
    """

    def __init__(self, what: str, *, after: float | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.after = after


class Changed(Exception):
    """The file is not the one that was begun: another length or another ETag."""


class Denied(Exception):
    """The server's answer is final: 401, 403, 404 and their like."""

    def __init__(self, what: str, *, status: int = 0, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.status = status
        self.fix = fix


class NoRanges(Exception):
    """The server sends the whole file whatever is asked."""


class Cancelled(Exception):
    """Nobody wants it any more."""
