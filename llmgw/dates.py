"""Dates as HTTP tells them."""

from email.utils import parsedate_to_datetime


def http_date(text: str | None) -> float | None:
    """Seconds since 1970; None for what is no date, from a server that lies, say."""
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, IndexError, OverflowError, OSError):
        return None  # the year 99999, a zone of as many hours
