"""Room on the disk, and what may leave the cache to make some."""

import os
import re
from pathlib import Path

import anyio
import msgspec
import pytest

from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights.cache import Cache
from llmgw.weights.claim import Claim, Claims, me
from llmgw.weights.copied import held_name, write_held
from llmgw.weights.parts import take_over
from llmgw.weights.plan import refs
from llmgw.weights.sources import Hub
from llmgw.weights.space import Space
from llmgw.wire import Progress
from tests.fakes.weights_server import Request, WeightsServer
from tests.weights.conftest import MIB, asking, noise
from tests.weights.rooms import Waits, room

GB = 10**9


def ignore(_: Progress) -> None:
    pass


def test_what_running_fetches_will_take_is_taken(tmp_path: Path) -> None:
    """T72: two of 60 GB, 100 GB free: the second is 20 GB short, and knows of whom."""
    claims = Claims(tmp_path, silence=20.0)
    space = Space(tmp_path, claims, free=lambda _: (1, 100 * GB))
    owner = me()
    claims.take("first", owner)
    claims.take("second", owner)
    first = Claim(owner=owner, key="first", total=60 * GB)
    second = Claim(owner=owner, key="second", total=60 * GB)

    assert space.missing(first, 60 * GB) == 0
    claims.beat(Claim(owner=owner, key="first", total=60 * GB, reserved=True))
    assert space.missing(second, 60 * GB) == 20 * GB
    assert [c.key for c in space.others(second)] == ["first"]

    claims.give_up("first", owner)
    assert space.missing(second, 60 * GB) == 0


@pytest.mark.parametrize("late", ["a", "b"])
def test_of_two_that_look_at_the_same_moment_one_takes_the_room(
    full: Path, late: str
) -> None:
    """T72: neither had seen the other, and both filled the disk."""
    told: list[str] = []
    early = "b" if late == "a" else "a"
    mine, beating, claims = room(full, late, told)
    theirs, their_beating, _ = room(full, early, told)
    claims.do = lambda: theirs.reserve({"x": 14 * MIB}, full)

    with pytest.raises(Waits):
        mine.reserve({"x": 14 * MIB}, full)

    assert their_beating.claim.reserved
    assert not beating.claim.reserved
    assert re.fullmatch(
        r"waiting for [\d.]+ MiB of disk, beside 1 other fetches", told[0]
    )


def test_one_that_comes_first_is_waited_for_and_not_refused_over(full: Path) -> None:
    """It has said how much it needs and not taken it yet."""
    told: list[str] = []
    mine, _, _ = room(full, "b", told)
    _, before, _ = room(full, "a", told)
    before.update((0, 14 * MIB))
    before.beat()

    with pytest.raises(Waits):
        mine.reserve({"x": 14 * MIB}, full)


def test_of_two_that_ask_at_once_one_is_first(tmp_path: Path) -> None:
    claims = Claims(tmp_path, silence=20.0)
    space = Space(tmp_path, claims, free=lambda _: (1, 100))
    owner = me()
    both = [Claim(owner=owner, key=key, total=60) for key in ("a", "b")]
    for claim in both:
        claims.take(claim.key, owner)
        claims.beat(claim)

    assert [space.missing(claim, 60) > 0 for claim in both] == [False, True]


def test_a_dead_one_s_claim_takes_no_room(tmp_path: Path) -> None:
    claims = Claims(tmp_path, silence=20.0)
    gone = me()
    gone = type(gone)(
        node=gone.node,
        boot=gone.boot,
        pids=gone.pids,
        pid=gone.pid,
        started=gone.started - 1,
        nonce="gone",
    )
    claims.take("first", gone)
    claims.beat(Claim(owner=gone, key="first", total=60, reserved=True))
    space = Space(tmp_path, claims, free=lambda _: (1, 100))

    assert space.missing(Claim(owner=me(), key="second"), 60) == 0


async def test_what_does_not_fit_is_refused_before_the_first_byte(
    full: Path, server: WeightsServer
) -> None:
    server.put("/large", noise(30 * MIB))
    server.put("/small", noise(10 * MIB))
    async with asking(full) as weights:
        await weights.ensure(server.url("/small"), None, ignore)
        with pytest.raises(WeightsError, match="are needed") as refused:
            await weights.ensure(server.url("/large"), None, ignore)

    assert not refused.value.final
    assert "llmgw weights evict" in refused.value.fix
    assert "10.0 MiB" in refused.value.fix
    assert server.sent() <= 10 * MIB + 2


def test_a_copy_for_which_the_disk_had_no_room_is_not_believed(full: Path) -> None:
    """T71: it would be as long as the file, zeros for the most part, and have the
    journal of a whole one beside it."""
    work = full / "work"
    theirs = work / "theirs"
    theirs.mkdir(parents=True)
    owner = msgspec.structs.replace(me(), boot="b", node="other", nonce="theirs")
    (theirs / "owner").write_bytes(msgspec.json.encode(owner))
    (theirs / "x.part.journal").write_bytes(b"{}\n")
    content = noise(12 * MIB) + bytes(20 * MIB)
    with (theirs / "x.part").open("wb") as part:
        part.truncate(32 * MIB)
        part.write(content[: 12 * MIB])
    ours = msgspec.structs.replace(me(), nonce="ours")

    (full / "filler").write_bytes(bytes(4 * MIB))
    with pytest.raises(OSError, match="No space left"):
        take_over(work, ours)
    left = {one.name for one in (work / "ours").iterdir()}
    (full / "filler").unlink()
    with (theirs / "x.part").open("r+b") as part:
        part.truncate(2 * MIB)
        part.truncate(32 * MIB)
    take_over(work, ours)

    assert left == {"x.part.journal"}
    copied = content[: 2 * MIB] + bytes(30 * MIB)
    assert (work / "ours/x.part").read_bytes() == copied


async def test_a_disk_that_fills_meanwhile_is_final_and_leaves_no_half(
    full: Path, server: WeightsServer
) -> None:
    """T71: ENOSPC is one attempt and a reason."""
    file = server.put("/model", noise(16 * MIB))
    filler = full / "filler"

    def fill(request: Request) -> None:
        if request.start and not filler.exists():
            filler.write_bytes(b"x" * 12 * MIB)

    file.before_answer = fill
    async with asking(full) as weights:
        with pytest.raises(WeightsError, match="no space left") as refused:
            await weights.ensure(server.url("/model"), None, ignore)

    assert refused.value.final
    assert not list(full.rglob("model/model"))


async def test_a_second_that_does_not_fit_beside_the_first_waits_and_says_why(
    full: Path, server: WeightsServer
) -> None:
    """T72: what the first will still take is taken, and told."""
    file = server.put("/first", noise(14 * MIB))
    file.rate = MIB
    server.put("/second", noise(14 * MIB, 2))
    told: list[str] = []
    first_began, second_waits = anyio.Event(), anyio.Event()

    def second(progress: Progress) -> None:
        told.append(progress.what)
        if progress.what.startswith("waiting"):
            file.rate = None
            second_waits.set()

    async with asking(full) as weights:

        async def first() -> None:
            await weights.ensure(
                server.url("/first"),
                None,
                lambda p: first_began.set() if p.done else None,
            )

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                await first_began.wait()
                with pytest.raises(WeightsError, match="are needed") as refused:
                    await weights.ensure(server.url("/second"), None, second)
                assert second_waits.is_set()
                assert not refused.value.final
                assert "llmgw weights evict" in refused.value.fix

    assert re.fullmatch(
        r"waiting for [\d.]+ MiB of disk, beside 1 other fetches", told[0]
    )
    assert server.sent("/second") <= 1


async def test_above_the_limit_the_longest_unused_leaves(
    tmp_path: Path, server: WeightsServer
) -> None:
    settings = keys.Weights(cache_limit=25 * MIB)
    async with asking(tmp_path, settings) as weights:
        paths: dict[str, Path] = {}
        for number, name in enumerate(("pinned", "held", "old", "newer", "wanted")):
            size = 9 * MIB if name == "wanted" else 5 * MIB
            server.put(f"/{name}", noise(size, number))
            paths[name] = await weights.ensure(server.url(f"/{name}"), None, ignore)
            os.utime(paths[name].parent / ".llmgw-used", (number, number))
            if name == "pinned":
                (paths[name].parent / ".llmgw-pinned").touch()
            if name == "held":
                await weights.hold([server.url("/held")])

    there = [name for name, path in paths.items() if path.exists()]
    assert there == ["pinned", "held", "newer", "wanted"]


@pytest.mark.parametrize(
    "odd", ["x", "https://[", "http://h:99999999/x", "hf://a/b@../c", "file:///\0"]
)
async def test_what_is_no_source_holds_nothing_and_lets_go_of_nothing(
    tmp_path: Path, server: WeightsServer, odd: str
) -> None:
    """One replica with a slip in it ended the agent; the others' files stay held."""
    settings = keys.Weights(cache_limit=10 * MIB)
    async with asking(tmp_path, settings) as weights:
        server.put("/held", noise(5 * MIB, 1))
        server.put("/wanted", noise(6 * MIB, 2))
        held = await weights.ensure(server.url("/held"), None, ignore)

        await weights.hold([odd, server.url("/held")])
        with pytest.raises(WeightsError, match="cache_limit"):
            await weights.ensure(server.url("/wanted"), None, ignore)

    assert held.exists()


def test_a_ref_that_is_no_text_names_no_commit(tmp_path: Path) -> None:
    """A disk that lost a block, say: it is asked for anew."""
    ref = tmp_path / refs(Hub(owner="a", name="b", revision="main")) / "main"
    ref.parent.mkdir(parents=True)
    ref.write_bytes(b"\xff\xfe")

    write_held(tmp_path, ["hf://a/b"])

    assert held_name("hf://a/b", tmp_path) is None


async def test_a_limit_that_leaves_no_room_says_so(
    tmp_path: Path, server: WeightsServer
) -> None:
    server.put("/model", noise(2 * MIB))

    async with asking(tmp_path, keys.Weights(cache_limit=MIB)) as weights:
        with pytest.raises(WeightsError, match="cache_limit"):
            await weights.ensure(server.url("/model"), None, ignore)

    assert server.sent() == 1


def test_a_link_does_not_lead_eviction_out_of_the_cache(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "cache"
    outside.mkdir()
    (outside / "llmgw-complete.json").write_text("{}")
    (root / "hf").mkdir(parents=True)
    (root / "hf" / "owner").symlink_to(outside)

    assert Cache(root).items() == []
