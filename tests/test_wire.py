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
        (
            [{"id": f"a{n}", "generation": 1, "engine": "x"} for n in range(1001)],
            "1001 replicas are more than 1000",
        ),
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


@pytest.mark.parametrize(
    ("raw", "recorded"),
    [
        (
            b'{"id":"a","generation":1,"engine":"command"}',
            "8b822872d7f28070e74a64fd3da8a1966b9e959b1bbf1341155c799d8ba9b3bc",
        ),
        (
            b'{ "generation":1, "id":"b", "cpus":2.0, '
            b'"memory":3000000000, "engine":"vllm" }',
            "3418dbbfbcd1bb16767438a51c044e244b893b5a35803126688e037912eb8b51",
        ),
        (
            b'{"id":"c","generation":1,"engine":"x","cpus":0.1,"y":[1e22,1e-7,-0.0,5e-324]}',
            "a1d673fdb3ed5b92d2ea407d4645d88d063319ca2abae00fc24987ad19d5e8bc",
        ),
        (
            b'{"id":"d","generation":1,"env":{"Z":"\\u00e9\\ud83d\\ude00\\n\\"/","A":""},"later":{}}',
            "d7cc2689270d3388874e5357b06d1300763cdc0b106decb5302cf8b36ccf2b73",
        ),
        (
            b'{"id":"e","generation":18446744073709551615,"args":[],"build":null,"on":true}',
            "8c59d3db145710b2cd97e970248b5458a5254c6e43cfa56534b588eed21fe199",
        ),
    ],
)
def test_the_digest_is_the_one_that_every_version_made(
    raw: bytes, recorded: str
) -> None:
    """It stands in the ledgers of engines that run: of another form, an upgrade would
    end and start each of them.
    """
    assert digest(raw) == recorded
