"""Delays double to the limit, and each wait is from the upper half."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from llmgw.backoff import delays, jittered

positive = st.floats(min_value=1e-3, max_value=1e6)


def test_delays_double_to_the_limit() -> None:
    assert list(islice(delays(1, 30), 7)) == [1, 2, 4, 8, 16, 30, 30]


@given(base=positive, limit=positive)
def test_delays_never_exceed_the_limit_and_never_shrink(
    base: float, limit: float
) -> None:
    waits = list(islice(delays(base, limit), 40))

    assert all(0 < wait <= limit for wait in waits)
    assert waits == sorted(waits)


@given(delay=positive, dice=st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_wait_is_from_the_upper_half(delay: float, dice: float) -> None:
    assert delay / 2 <= jittered(delay, dice) <= delay
