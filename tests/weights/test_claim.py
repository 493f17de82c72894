"""Who fetches: claims that are taken, broken, kept alive and never in the way."""

import threading
from pathlib import Path

import msgspec

from llmgw.weights.claim import Claim, Claims, Owner, is_dead, me
from llmgw.weights.parts import take_over
from tests.weights.conftest import MIB


def dead(nonce: str) -> Owner:
    """This process's number, of a process that started before it."""
    mine = me()
    return msgspec.structs.replace(mine, started=mine.started - 1, nonce=nonce)


def elsewhere(nonce: str) -> Owner:
    return msgspec.structs.replace(me(), boot="another", node="other", nonce=nonce)


def test_of_many_at_once_one_is_it(tmp_path: Path) -> None:
    """T68: link(2) decides, not a lock."""
    owners = [me() for _ in range(16)]
    Claims(tmp_path, 20.0).take("k", dead("gone"))
    taken: list[str] = []

    def take(owner: Owner) -> None:
        if Claims(tmp_path, 20.0).take("k", owner) is None:
            taken.append(owner.nonce)

    threads = [threading.Thread(target=take, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = Claims(tmp_path, 20.0).read("k")
    assert found is not None
    assert found.owner.nonce in taken
    assert [p.name for p in (tmp_path / "k").iterdir()] == ["claim"]


def test_a_dead_one_s_claim_is_taken_at_once(tmp_path: Path) -> None:
    """T69: nothing has to be removed by hand."""
    claims = Claims(tmp_path, 20.0)
    claims.take("k", dead("gone"))

    assert is_dead(dead("gone"))
    assert claims.take("k", me()) is None


def test_another_machine_s_is_taken_when_its_count_stands_still(tmp_path: Path) -> None:
    now = 0.0
    claims = Claims(tmp_path, 20.0, clock=lambda: now)
    other = elsewhere("other")
    claims.take("k", other)

    assert claims.take("k", me()) is not None
    now = 19.0
    claims.beat(Claim(owner=other, key="k", beat=1))
    assert claims.take("k", me()) is not None
    now = 38.0
    assert claims.take("k", me()) is not None
    now = 40.0
    assert claims.take("k", me()) is None
    assert not claims.beat(Claim(owner=other, key="k", beat=2))


def test_a_claim_that_cannot_be_read_is_nobody_s(tmp_path: Path) -> None:
    """A power cut can leave an empty file where a claim was."""
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "claim").write_bytes(b"")

    assert Claims(tmp_path, 20.0).take("k", me()) is None


def test_giving_up_leaves_nothing(tmp_path: Path) -> None:
    claims = Claims(tmp_path, 20.0)
    owner = me()
    claims.take("k", owner)
    claims.give_up("k", me())
    assert claims.read("k") is not None

    claims.give_up("k", owner)

    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_what_another_left_takes_no_more_disk(tmp_path: Path) -> None:
    """A part is as long as the file will be; a disk with room for the rest only would
    be full of zeros."""
    work = tmp_path / "work"
    theirs = work / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "owner").write_bytes(msgspec.json.encode(elsewhere("theirs")))
    (theirs / "x.part.journal").write_bytes(b"{}\n")
    content = bytes(8 * MIB) + b"y" * MIB + bytes(7 * MIB) + b"z" * 100
    with (theirs / "x.part").open("wb") as part:
        part.truncate(32 * MIB)
        part.seek(8 * MIB)
        part.write(b"y" * MIB)
        part.seek(16 * MIB)
        part.write(b"z" * 100)

    take_over(work, me_named("ours"))

    copy = work / "ours" / "x.part"
    assert copy.read_bytes() == content + bytes(32 * MIB - len(content))
    assert copy.stat().st_blocks <= (theirs / "x.part").stat().st_blocks + 16


def me_named(nonce: str) -> Owner:
    return msgspec.structs.replace(me(), nonce=nonce)
