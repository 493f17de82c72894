"""How far a job is, as it is told to whoever looks on."""

from llmgw.weights.room import WHY_LASTS, Account
from llmgw.wire import Progress


def test_what_went_wrong_is_told_until_a_while_after_it_is_tried_again() -> None:
    """A server that breaks every few seconds is slow, and a person sees why."""
    told: list[Progress] = []
    now = 100.0
    account = Account(told.append, clock=lambda: now)
    account.begin(2)
    account.has_one_more()
    account.size({"a": 10, "b": 20})

    account.note("a", 10)
    account.again("no answer in time", 3.2)
    now += 3.2 + WHY_LASTS - 0.1
    account.note("b", 5)
    now += 0.2
    account.note("b", 6)

    plain = "fetching, 1 of 2 files here"
    why = f"{plain}, asked again in 4 s (no answer in time)"
    assert [one.what for one in told] == [plain, why, why, plain]
    assert [one.done for one in told] == [10, 10, 15, 16]
    assert {one.total for one in told} == {30}


def test_what_is_asked_again_at_once_has_no_seconds() -> None:
    told: list[Progress] = []
    account = Account(told.append, clock=lambda: 0.0)

    account.again("the answer ended early", 0.0)

    assert told[0].what == "fetching, asked again (the answer ended early)"
