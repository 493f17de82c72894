"""hf:// from a hub that redirects to signed addresses elsewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights.order import Done, Working
from llmgw.weights.parts import WORK
from llmgw.wire import Progress
from tests.fakes.hub import FakeHub
from tests.weights.conftest import MIB, asking, noise
from tests.weights.process import FetchProcess

FILES = {
    "config.json": b"{}",
    "README.md": b"# a model",
    ".gitattributes": b"*",
    "model.safetensors": noise(200_000),
    "q4/model-q4.gguf": noise(90_000, 2),
    "q8/model-q8-00001-of-00002.gguf": noise(50_000, 3),
    "q8/model-q8-00002-of-00002.gguf": noise(50_000, 4),
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as running:
        running.add("owner/name", FILES)
        yield running


def ignore(_: Progress) -> None:
    pass


def at(hub: FakeHub, **more: object) -> keys.Weights:
    return keys.Weights(hf_endpoint=hub.url, **more)  # pyright: ignore[reportArgumentType]


async def test_a_repository_is_a_folder_of_its_commit(
    tmp_path: Path, hub: FakeHub
) -> None:
    seen: list[Progress] = []
    async with asking(tmp_path, at(hub)) as weights:
        path = await weights.ensure("hf://owner/name", None, seen.append)

    assert re.fullmatch(r"fetching, \d of 6 files here", seen[-1].what)
    assert path == tmp_path / "hf/owner/name" / hub.repos["owner/name"].commit
    there = {
        str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()
    }
    assert there.items() >= {k: v for k, v in FILES.items() if k[0] != "."}.items()
    assert ".gitattributes" not in there


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("*q4*.gguf", "q4/model-q4.gguf"),
        ("q4/model-q4.gguf", "q4/model-q4.gguf"),
        ("q8/*", "q8/model-q8-00001-of-00002.gguf"),
        ("q8", "q8/model-q8-00001-of-00002.gguf"),
        ("*.*", ""),
    ],
)
async def test_a_pattern_is_answered_with_what_an_engine_is_given(
    tmp_path: Path, hub: FakeHub, pattern: str, answer: str
) -> None:
    async with asking(tmp_path, at(hub)) as weights:
        path = await weights.ensure(f"hf://owner/name@main/{pattern}", None, ignore)

    folder = tmp_path / "hf/owner/name" / hub.repos["owner/name"].commit
    assert path == folder / answer


@pytest.mark.parametrize(
    "name",
    [
        "{outside}/evil.gguf",
        "a/../../../../../evil.gguf",
        "a//b.gguf",
        "a\0b.gguf",
        "\ud800.gguf",
        "x" * 300 + ".gguf",
        "",
    ],
)
async def test_a_file_that_would_land_elsewhere_is_not_fetched(
    tmp_path: Path, hub: FakeHub, name: str
) -> None:
    """Whoever answers as the hub wrote wherever the agent's user may: a name that
    begins with a slash is no name below a folder.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    hub.repos["owner/name"].files = {name.format(outside=outside): noise(2000)}
    cache = tmp_path / "a" / "b" / "cache"
    async with asking(cache, at(hub)) as weights:
        with pytest.raises(WeightsError, match="lists a file called") as refused:
            await weights.ensure("hf://owner/name", None, ignore)

    assert refused.value.final
    assert list(outside.iterdir()) == []
    assert not list(tmp_path.rglob("*.gguf"))


async def test_a_cache_that_was_put_on_the_hub_is_fetched_without_its_marker(
    tmp_path: Path, hub: FakeHub
) -> None:
    """It lay in the place of our own, and the fetch never came to an end."""
    marker = {"llmgw-complete.json": noise(2000), "q4/.llmgw-pinned": b""}
    repo = hub.add("owner/cached", {**marker, "model.gguf": noise(3000, 2)})
    async with asking(tmp_path, at(hub)) as weights:
        path = await weights.ensure("hf://owner/cached", None, ignore)

    assert path == tmp_path / "hf/owner/cached" / repo.commit / "model.gguf"
    assert not list(path.parent.rglob(".llmgw-pinned"))


@pytest.mark.parametrize("commit", ["../../../../evil", "", "/evil", "main"])
async def test_a_commit_that_is_none_names_no_folder(
    tmp_path: Path, hub: FakeHub, commit: str
) -> None:
    hub.repos["owner/name"].commit = commit
    async with asking(tmp_path / "cache", at(hub)) as weights:
        with pytest.raises(WeightsError, match="its commit is"):
            await weights.ensure("hf://owner/name", None, ignore)

    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize("name", ["owner/name.git", "owner/a--b", "owner/name-"])
async def test_what_is_no_name_on_the_hub_ends_nothing_else(
    tmp_path: Path, hub: FakeHub, name: str
) -> None:
    """The hub's library raises of its own; the fetch process ended over it, and every
    other fetch with it, as often as the replica was tried.
    """
    async with asking(tmp_path, at(hub)) as weights:
        with pytest.raises(WeightsError, match="is no name on the hub") as refused:
            await weights.ensure(f"hf://{name}", None, ignore)

    assert refused.value.final


async def test_the_token_goes_to_the_hub_and_not_where_it_redirects(
    tmp_path: Path, hub: FakeHub
) -> None:
    hub.add("owner/gated", {"model.gguf": noise(5000)}, gated=True)
    token = tmp_path / "token"
    token.write_text("hf_right\n")

    async with asking(tmp_path / "c", at(hub, hf_token_file=str(token))) as weights:
        await weights.ensure("hf://owner/gated/model.gguf", None, ignore)

    assert {who for _, who in hub.asked} == {"Bearer hf_right"}
    assert hub.cdn.requests
    assert not any("Authorization" in r.headers for r in hub.cdn.requests)


async def test_a_gated_one_without_a_token_is_final_and_says_what_to_do(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T71. A token in the environment is not one that was given to us."""
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    hub.add("owner/gated", {"model.gguf": noise(5000)}, gated=True)

    async with asking(tmp_path, at(hub)) as weights:
        with pytest.raises(WeightsError, match="gated") as refused:
            await weights.ensure("hf://owner/gated/model.gguf", None, ignore)

    assert refused.value.final
    assert "hf_token_file" in refused.value.fix
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("hf://owner/nothing", "there is no owner/nothing@main"),
        ("hf://owner/name@v9", "there is no owner/name@v9"),
        ("hf://owner/name/*.q2", "no file that matches"),
    ],
)
async def test_what_is_not_there_is_final(
    tmp_path: Path, hub: FakeHub, source: str, told: str
) -> None:
    async with asking(tmp_path, at(hub)) as weights:
        with pytest.raises(WeightsError, match=told) as refused:
            await weights.ensure(source, None, ignore)

    assert refused.value.final
    assert len(hub.asked) == 1


async def test_what_is_here_needs_no_hub(tmp_path: Path, hub: FakeHub) -> None:
    async with asking(tmp_path, at(hub)) as weights:
        before = await weights.ensure("hf://owner/name/*q4.gguf", None, ignore)
    asked = len(hub.asked)

    async with asking(tmp_path, at(hub)) as weights:
        after = await weights.ensure("hf://owner/name@main/*q4.gguf", None, ignore)

    assert after == before
    assert len(hub.asked) == asked
    ref = tmp_path / "hf/owner/name/refs/main"
    assert ref.read_text().strip() == hub.repos["owner/name"].commit


async def test_a_small_file_is_checked_too(tmp_path: Path, hub: FakeHub) -> None:
    """Git keeps it, and the hub tells git's id of it instead of a SHA-256."""
    hub.cdn.put("/owner/name/config.json", b"[]")

    async with asking(tmp_path, at(hub)) as weights:
        with pytest.raises(WeightsError, match="not the file that the hub describes"):
            await weights.ensure("hf://owner/name/config.json", None, ignore)


async def test_a_signed_address_that_has_run_out_is_asked_for_anew(
    tmp_path: Path, hub: FakeHub
) -> None:
    content = noise(20 * 1024 * 1024)
    hub.add("owner/large", {"model.gguf": content})
    file = hub.cdn.files["/owner/large/model.gguf"]
    file.good_for = 2

    async with asking(tmp_path, at(hub)) as weights:
        path = await weights.ensure("hf://owner/large/model.gguf", None, ignore)

    assert path.read_bytes() == content
    assert hub.signatures > 1


def test_after_a_kill_no_file_that_lay_whole_is_fetched_again(tmp_path: Path) -> None:
    """T70: killed between two files of four, the first two were fetched twice."""
    files = {f"{number}.bin": noise(6 * MIB, number) for number in range(4)}
    with FakeHub() as hub:
        hub.add("o/m", files)
        last = hub.cdn.files["/o/m/3.bin"]
        last.rate = MIB
        settings = at(hub, connections=2)
        with FetchProcess(tmp_path, settings) as first:
            first.ask("hf://o/m")
            while said := first.next():
                assert isinstance(said, Working)
                if "3 of 4 files here" in said.progress.what:
                    break
        last.rate = None
        with FetchProcess(tmp_path, settings) as second:
            second.ask("hf://o/m")
            ended = second.ended()
        sent = hub.cdn.sent()

    assert isinstance(ended, Done)
    assert {n: (Path(ended.path) / n).read_bytes() for n in files} == files
    assert sent <= 4 * 6 * MIB * 105 // 100
    assert not list((tmp_path / WORK).glob("*/*"))


async def test_what_another_pattern_brought_is_not_fetched_again(
    tmp_path: Path, hub: FakeHub
) -> None:
    async with asking(tmp_path, at(hub)) as weights:
        await weights.ensure("hf://owner/name/q8", None, ignore)
        root = await weights.ensure("hf://owner/name", None, ignore)
        again = await weights.ensure("hf://owner/name/q*", None, ignore)

    assert again == root
    assert sum(r.sent > 1 for r in hub.cdn.requests) == 6
    for file in FILES:
        if not file.startswith("."):
            assert (root / file).read_bytes() == FILES[file]


async def test_what_another_pattern_brought_and_somebody_cut_is_fetched_again(
    tmp_path: Path, hub: FakeHub
) -> None:
    """And what was changed within its length, where git's id can tell."""
    async with asking(tmp_path, at(hub)) as weights:
        root = await weights.ensure("hf://owner/name", None, ignore)
        (root / "model.safetensors").write_bytes(b"cut")
        (root / "config.json").write_bytes(b"[]")
        await weights.ensure("hf://owner/name/*.*", None, ignore)

    assert (root / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert (root / "config.json").read_bytes() == FILES["config.json"]
