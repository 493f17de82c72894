"""Who fetches: claims that are taken, broken, kept alive and never in the way."""

import hashlib
import threading
from pathlib import Path

import msgspec
import pytest

from llmgw.weights.claim import Claim, Claims, Owner, is_dead, me
from llmgw.weights.parts import take_over
from tests.weights.conftest import MIB


def dead(nonce: str) -> Owner:
    """This process's number, of a process that started before it."""
    mine = me()
    return msgspec.structs.replace(mine, started=mine.started - 1, nonce=nonce)


def elsewhere(nonce: str) -> Owner:
    return msgspec.structs.replace(
        me(), boot="another", node="other", machine="other", nonce=nonce
    )


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


@pytest.fixture
def machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with an id, for machines that have none."""
    path = tmp_path / "machine-id"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr("llmgw.weights.claim.MACHINE_ID", path)
    return path


def taken_after(folder: Path, other: Owner) -> float:
    """How long *other*, who is silent, is waited for out of 20 s."""
    now = 0.0
    claims = Claims(folder, 20.0, clock=lambda: now)
    claims.take("k", other)
    while claims.take("k", me()) is not None:
        now += 0.5
        assert now < 30
    return now


def test_after_a_power_cut_the_claim_of_before_is_not_waited_for_as_long(
    tmp_path: Path, machine_id: Path
) -> None:
    """Every fetch stood still for 20 s after one."""
    earlier = msgspec.structs.replace(me(), boot="earlier", nonce="earlier")

    container = msgspec.structs.replace(me(), pids="pid:[1]", nonce="container")

    assert taken_after(tmp_path / "a", earlier) == 5.5
    assert taken_after(tmp_path / "e", container) == 20.5
    machine_id.write_text("another machine's\n")
    assert taken_after(tmp_path / "b", earlier) == 20.5
    machine_id.unlink()
    assert taken_after(tmp_path / "c", earlier) == 20.5
    assert taken_after(tmp_path / "d", msgspec.structs.replace(me(), boot="e")) == 20.5


def test_a_clone_of_another_name_is_another_machine(
    tmp_path: Path, machine_id: Path
) -> None:
    mine = me()
    name = (machine_id.read_text() + "other").encode()
    theirs = hashlib.sha256(name).hexdigest()[:16]
    clone = msgspec.structs.replace(
        mine, boot="theirs", node="other", machine=theirs, nonce="theirs"
    )

    assert mine.machine not in ("", theirs)
    assert taken_after(tmp_path / "a", clone) == 20.5


def test_one_of_an_earlier_boot_that_counts_on_keeps_its_claim(
    tmp_path: Path, machine_id: Path
) -> None:
    """A clone with our id and our name, which lives."""
    now = 0.0
    claims = Claims(tmp_path, 20.0, clock=lambda: now)
    clone = msgspec.structs.replace(me(), boot="its own", nonce="clone")
    claims.take("k", clone)

    for beat in range(1, 20):
        assert claims.take("k", me()) is not None
        now += 4.0
        claims.beat(Claim(owner=clone, key="k", beat=beat))


def test_what_one_of_an_earlier_boot_left_is_copied(
    tmp_path: Path, machine_id: Path
) -> None:
    """It is no proof of a death: a clone that lives may write to that inode still."""
    earlier = msgspec.structs.replace(me(), boot="earlier", nonce="earlier")
    work = tmp_path / "work"
    theirs = work / "earlier"
    theirs.mkdir(parents=True)
    (theirs / "owner").write_bytes(msgspec.json.encode(earlier))
    (theirs / "x.part").write_bytes(b"some")
    (theirs / "x.part.journal").write_bytes(b"{}\n")

    take_over(work, me_named("ours"))

    assert not is_dead(earlier)
    copy = work / "ours" / "x.part"
    assert copy.read_bytes() == b"some"
    assert copy.stat().st_ino != (theirs / "x.part").stat().st_ino


def test_an_older_version_s_claim_is_waited_for_as_it_was(
    tmp_path: Path, machine_id: Path
) -> None:
    older = msgspec.structs.replace(me(), boot="earlier", nonce="older", machine="")

    assert taken_after(tmp_path / "a", older) == 20.5
    path = tmp_path / "b" / "k" / "claim"
    path.parent.mkdir(parents=True)
    said = msgspec.to_builtins(Claim(owner=older, key="k"))
    del said["owner"]["machine"]
    path.write_bytes(msgspec.json.encode(said))
    found = Claims(tmp_path / "b", 20.0).read("k")
    assert found is not None
    assert found.owner == older


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
