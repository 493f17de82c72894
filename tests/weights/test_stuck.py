"""Files whose lengths are known one by one, on a disk that has not room for all."""

import threading
from pathlib import Path

import pytest

from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights.order import Done, Failed
from tests.fakes.hub import FakeHub
from tests.fakes.weights_server import Request
from tests.weights.conftest import MIB, noise
from tests.weights.process import FetchProcess
from tests.weights.rooms import Waits, room


def test_what_is_promised_to_one_file_is_not_there_for_the_next(full: Path) -> None:
    """T72: eight files of one folder each found the whole disk free, and filled it."""
    mine, _, _ = room(full, "a", [])
    mine.reserve({"x": 14 * MIB}, full)

    with pytest.raises(WeightsError, match=r"28\.0 MiB are needed"):
        mine.reserve({"y": 14 * MIB}, full)


def test_what_one_that_has_room_needs_beside_is_known_at_once(full: Path) -> None:
    told: list[str] = []
    mine, _, _ = room(full, "b", told)
    theirs, _, _ = room(full, "a", told)
    theirs.reserve({"x": 6 * MIB}, full)
    mine.reserve({"x": 6 * MIB}, full)
    theirs.reserve({"y": 6 * MIB}, full)

    with pytest.raises(Waits):
        mine.reserve({"y": 8 * MIB}, full)


@pytest.mark.parametrize(
    ("key", "other", "does_wait", "gives_way"),
    [("b", "a", True, True), ("b", "a", False, False), ("a", "b", True, False)],
)
def test_of_two_that_hold_room_and_wait_for_more_the_last_gives_way(
    full: Path, key: str, other: str, does_wait: bool, gives_way: bool
) -> None:
    """T72: what each had the other waited for, and both did for ever."""
    pauses: list[float] = []
    mine, beating, _ = room(full, key, [], pauses)
    theirs, their_beating, _ = room(full, other, [])
    for one in (mine, theirs):
        one.reserve({"x": 10 * MIB}, full)
    their_beating.wait(does_wait)

    with pytest.raises(WeightsError if gives_way else Waits) as ended:
        mine.reserve({"y": 10 * MIB}, full)

    assert mine.gave_way is gives_way
    assert not beating.claim.waiting
    if isinstance(ended.value, WeightsError):
        assert not ended.value.final
        assert "1 other fetches wait for what this one has" in ended.value.what
        # Not at the first sight of it: a claim is seen a moment late.
        assert len(pauses) == 2


def test_of_two_that_wait_for_each_other_one_comes_and_one_says_why_not(
    full: Path,
) -> None:
    """T72: their files' lengths are only known one by one."""
    with FakeHub() as hub:
        for name in ("o/a", "o/b"):
            hub.add(name, {f"{n}.bin": noise(8 * MIB, n) for n in range(2)})
            hub.repos[name].says_sizes = False

        def both_have_begun(request: Request) -> None:
            while not all(hub.cdn.sent(f"/{n}/0.bin") > 1 for n in ("o/a", "o/b")):
                threading.Event().wait(0.02)

        for name in ("o/a", "o/b"):
            hub.cdn.files[f"/{name}/1.bin"].before_answer = both_have_begun
        settings = keys.Weights(hf_endpoint=hub.url, connections=1)
        with FetchProcess(full, settings) as one, FetchProcess(full, settings) as two:
            one.ask("hf://o/a")
            two.ask("hf://o/b")
            ended = [one.ended(), two.ended()]

    (done,) = [e for e in ended if isinstance(e, Done)]
    (failed,) = [e for e in ended if isinstance(e, Failed)]
    assert len(list(Path(done.path).glob("*.bin"))) == 2
    assert "it gives way" in failed.what
    assert not failed.final


def test_a_folder_that_does_not_fit_is_refused_before_the_first_byte(
    full: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(noise(9 * MIB, number))
    with FetchProcess(full) as process:
        process.ask(f"file://{folder}")
        ended = process.ended()

    assert isinstance(ended, Failed)
    assert "27.0 MiB are needed" in ended.what
    assert ended.came == 0
