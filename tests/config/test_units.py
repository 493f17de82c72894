"""Durations as Go reads them, and sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("5.s", 5.0),
        ("0", 0.0),
        ("+5s", 5.0),
        ("-1.5m", -90.0),
        ("1µs", 1e-6),  # the micro sign
        ("1μs", 1e-6),  # the Greek letter
        ("1us", 1e-6),
        ("2h45m3.5s", 9903.5),
        ("1s1s", 2.0),
        ("0.3333333333333333333333s", 0.333333333),
        ("9223372036854775807ns", 9223372036854775807 / 10**9),
        ("-9223372036854775808ns", -9223372036854775808 / 10**9),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not a duration"),
        ("5", "has no unit"),
        ("5.5", "has no unit"),
        ("s", "is not a duration"),
        (".s", "is not a duration"),
        ("5 s", "has a space in it"),
        (" 5s", "is not a duration"),
        ("5x", 'has the unknown unit "x"'),
        ("1d", 'has the unknown unit "d"'),
        ("--5s", "is not a duration"),
        ("1e3s", 'has the unknown unit "e"'),
        ("\u0665s", "is not a duration"),
        ("9223372036854775808ns", "is longer than 292 years"),
        ("9999999999999999999999999999h", "is longer than 292 years"),
        ("2562048h", "is longer than 292 years"),
    ],
)
def test_what_go_does_not_read_is_said_to_be_wrong(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        units.duration(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_duration_that_is_shown_is_read_as_the_same(nanoseconds: int) -> None:
    seconds = nanoseconds / 10**9

    assert units.duration(units.show_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("512B", 512),
        ("64MiB", 64 * 2**20),
        ("8GB", 8 * 10**9),
        ("1.5KiB", 1536),
        ("2TiB", 2**41),
        ("0B", 0),
    ],
)
def test_a_size_is_binary_or_decimal(text: str, count: int) -> None:
    assert units.size(text) == count


@pytest.mark.parametrize(
    "text", ["", "64", "64 MiB", "64mib", "MiB", "1iB", "-1B", "64Mi", "9" * 30 + "B"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|unit|larger"):
        units.size(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_size_that_is_shown_is_read_as_the_same(count: int) -> None:
    assert units.size(units.show_size(count)) == count
