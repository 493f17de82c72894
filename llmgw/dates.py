"""Dates as HTTP tells them, and as people are told them."""

import time
from email.utils import parsedate_to_datetime


def http_date(text: str | None) -> float | None:
    """Seconds since 1970; None for what is no date, from a server that lies, say."""
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, IndexError, OverflowError, OSError):
        return None  # the year 99999, a zone of as many hours


def shown(seconds: float) -> str:
    """*seconds* since 1970, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
