"""The wire is lenient where versions differ, and strict where engines could die."""

import msgspec
import pytest

from llmgw.wire import Ask, Ping, Snapshot, decode_line, digest


def test_an_unknown_kind_is_passed_over_and_an_unknown_field_is_skipped() -> None:
    assert decode_line(b'{"t":"confetti","colour":"red"}') is None
    assert decode_line(b'{"t":"ping","novel":1}') == Ping()


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b'{"t":7}', b"\xff", b'{"t":"ask"}']
)
def test_garbage_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the words are msgspec's
        decode_line(line)


def test_the_digest_is_over_the_replica_as_it_came() -> None:
    one = decode_line(
        b'{"t":"snapshot","epoch":1,"rev":2,"complete":true,"replicas":'
        b'[{"id":"a","generation":1,"engine":"command","novel":1}]}'
    )
    assert isinstance(one, Snapshot)

    (wanted,) = one.wanted()

    spaced = b'{ "generation": 1, "novel": 1, "engine": "command", "id": "a" }'
    assert wanted.digest == digest(spaced)
    assert wanted.digest != digest(b'{"id":"a","generation":1,"engine":"command"}')


@pytest.mark.parametrize(
    ("replicas", "says"),
    [
        ([{"id": "A", "generation": 1, "engine": "x"}], "the id 'A'"),
        ([{"id": "a\n", "generation": 1, "engine": "x"}], "the id"),
        ([{"id": "a", "generation": 1, "engine": "x"}] * 2, "stands twice"),
        ([{"id": "a", "generation": "x", "engine": "x"}], "replicas[0]"),
        ([{"id": "a"}], "replicas[0]"),
    ],
)
def test_one_bad_replica_refuses_the_snapshot(
    replicas: list[object], says: str
) -> None:
    line = msgspec.json.encode(
        {"t": "snapshot", "epoch": 1, "rev": 1, "complete": True, "replicas": replicas}
    )
    snapshot = decode_line(line)
    assert isinstance(snapshot, Snapshot)

    with pytest.raises(ValueError, match=says.replace("[", r"\[").replace("]", r"\]")):
        snapshot.wanted()


def test_a_message_round_trips() -> None:
    ask = Ask(id="1", kind="log_tail", args={"replica": "a"})

    assert decode_line(msgspec.json.encode(ask)) == ask


# Python 3.14 counts the stack that is left, not the calls: 100,000 are no longer deep.
DEEP = b"[" * 1_000_000 + b"]" * 1_000_000


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"ping","x":%b}' % DEEP,
        b'{"t":"snapshot","epoch":1,"rev":1,"replicas":[{"id":"a","x":%b}]}' % DEEP,
        b'{"t":"ping","x":"\xff"',
    ],
    ids=["deep", "deep replica", "cut off"],
)
def test_a_line_that_cannot_be_read_is_a_value_error(line: bytes) -> None:
    """RecursionError is no ValueError: one line of brackets ended the whole agent."""
    with pytest.raises(ValueError):  # noqa: PT011 -- the words are msgspec's
        decode_line(line)


@pytest.mark.parametrize(
    "said", [b'"x":1e999', b'"x":"\xff"', b'"engine":"\xff"'], ids=repr
)
def test_a_replica_that_cannot_be_read_is_named(said: bytes) -> None:
    """Also where the fault is in a field that this version skips."""
    replica = b'{"id":"a","generation":1,"engine":"command",%b}' % said
    snapshot = Snapshot(epoch=1, rev=1, complete=True, replicas=(msgspec.Raw(replica),))

    with pytest.raises(ValueError, match=r"replicas\[0\]"):
        snapshot.wanted()
