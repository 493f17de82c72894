"""When an engine that ended is started again."""

from llmgw.supervisor.restarts import Again, Restarts


def test_one_that_served_comes_back_at_once_the_first_time() -> None:
    policy = Restarts(1.0, 60.0, 5)

    assert policy.ended(served=5.0) == Again(0.0, False)
    assert policy.ended(served=5.0) == Again(1.0, False)


def test_a_member_of_a_group_waits_from_the_first() -> None:
    """T90: its group has to see that it is down."""
    policy = Restarts(5.0, 60.0, 5, at_once=False)

    assert policy.ended(served=5.0) == Again(5.0, False)
    assert policy.ended(served=5.0) == Again(10.0, False)
