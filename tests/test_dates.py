"""Dates as HTTP tells them, and as nobody should."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.dates import http_date


@given(st.integers(min_value=0, max_value=250_000_000_000))
def test_a_date_is_the_second_that_it_names(second: int) -> None:
    assert http_date(formatdate(second, usegmt=True)) == second


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        ",",
        "tomorrow",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 2024 99:00:00 GMT",
        "Mon, 99 Jan 2024 00:00:00 GMT",
    ],
)
def test_what_is_no_date_is_none(text: str | None) -> None:
    assert http_date(text) is None


WORDS = st.sampled_from(
    ["Mon", "Jan", "31", "2024", "00:00:00", "GMT", "-0000", "+9999", ",", "9" * 25]
)


@given(st.text() | st.lists(WORDS, max_size=9).map(" ".join))
def test_nothing_that_a_server_says_is_raised(text: str) -> None:
    found = http_date(text)

    assert found is None or -1e11 < found < 1e12
