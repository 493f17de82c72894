"""What may leave the cache, and what goes with it: nothing else."""

import os
from pathlib import Path

import pytest

from llmgw.errors import WeightsError
from llmgw.weights import cache as cached
from llmgw.weights import marker
from llmgw.weights.cache import HOLD_LASTS, PIN, USED, Cache
from llmgw.weights.parts import WORK
from llmgw.weights.verify import known_sha256

DIGEST = "sha256-0123456789abcdef"


def put(folder: Path, source: str, name: str = "m.gguf", *, used: float = 1e9) -> Path:
    """Weights that lie complete in *folder*."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * 10)
    entry = marker.Entry(size=10, sha256="0" * 64)
    marker.write(folder, marker.Marker(files={name: entry}, sources={source: (name,)}))
    (folder / USED).touch()
    os.utime(folder / USED, (used, used))
    return folder / name


def evict(cache: Cache, name: str) -> None:
    [item] = cache.find(name)
    cache.evict(item)


def test_what_lies_below_another_does_not_go_with_it(tmp_path: Path) -> None:
    """The same address with a digest is another file, and an engine may have it mapped;
    it lies below the one without."""
    home = tmp_path / "https/host/m.gguf"
    put(home, "https://host/m.gguf")
    pinned = put(home / DIGEST, "https://host/m.gguf#digest")
    deeper = put(home / "a/b", "https://host/m.gguf/a/b")
    (home / DIGEST / PIN).touch()
    (home / "left/over").mkdir(parents=True)
    (home / "left/over/half").touch()

    evict(Cache(tmp_path), "https/host/m.gguf")

    assert pinned.exists()
    assert deeper.exists()
    assert sorted(path.name for path in home.iterdir()) == ["a", DIGEST]
    assert len(Cache(tmp_path).items()) == 2


def test_folders_that_nothing_is_left_in_go_too_and_the_cache_stays(
    tmp_path: Path,
) -> None:
    put(tmp_path / "hf/owner/name/abc", "hf://owner/name", "sub/m.gguf")

    evict(Cache(tmp_path), "hf://owner/name")

    assert [path.name for path in tmp_path.iterdir()] == [WORK]


def test_a_link_in_it_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").touch()
    put(tmp_path / "cache/hf/o/n/abc", "hf://o/n")
    (tmp_path / "cache/hf/o/n/abc/out").symlink_to(tmp_path / "outside")

    evict(Cache(tmp_path / "cache"), "hf://o/n")

    assert (tmp_path / "outside/precious").exists()
    assert not (tmp_path / "cache/hf").exists()


def test_what_another_node_holds_stays_until_it_is_silent_for_a_month(
    tmp_path: Path,
) -> None:
    """A cache may be shared: each node says what its replicas use."""
    put(tmp_path / "hf/o/n/abc", "hf://o/n")
    cache = Cache(tmp_path)
    cache.hold("other", ["hf://o/n"])
    (tmp_path / WORK / "holds/broken.json").write_text("{")

    with pytest.raises(WeightsError, match="a replica uses it"):
        evict(cache, "hf://o/n")
    cache.hold("third", [])
    with pytest.raises(WeightsError, match="a replica uses it"):
        evict(cache, "hf://o/n")

    hold = tmp_path / WORK / "holds/other.json"
    for silent, is_held in ((HOLD_LASTS - 60, True), (HOLD_LASTS + 60, False)):
        now = (tmp_path / WORK / "clock").stat().st_mtime
        os.utime(hold, (now - silent, now - silent))
        assert [bool(item.in_use) for item in cache.items()] == [is_held]
    evict(cache, "hf://o/n")


def test_room_is_made_of_the_longest_unused_and_of_no_more_than_it_takes(
    tmp_path: Path,
) -> None:
    for name, used in (("pinned", 1e8), ("open", 2e8), ("a", 4e8), ("b", 3e8)):
        put(tmp_path / "https/host" / name, f"https://host/{name}", used=used)
    put(tmp_path / "https/host/c", "https://host/c", used=5e8)
    (tmp_path / "https/host/pinned" / PIN).touch()
    opened = str(tmp_path / "https/host/open/m.gguf")
    cache = Cache(tmp_path, open_files=lambda _: {opened})

    assert cache.make_room(0) == 0
    assert cache.make_room(11) == 20
    left = [Path(item.folder).name for item in cache.items()]
    assert left == ["pinned", "open", "c"]
    assert cache.make_room(1000) == 10
    assert [Path(item.folder).name for item in cache.items()] == ["pinned", "open"]


def test_what_was_never_asked_for_again_is_as_old_as_its_marker(tmp_path: Path) -> None:
    put(tmp_path / "https/host/old", "https://host/old")
    (tmp_path / "https/host/old" / USED).unlink()
    os.utime(tmp_path / "https/host/old" / marker.NAME, (1e8, 1e8))
    put(tmp_path / "https/host/new", "https://host/new", used=2e8)

    found = Cache(tmp_path).items()

    assert [Path(item.folder).name for item in found] == ["old", "new"]


def test_a_clock_that_ran_ahead_makes_nothing_older_than_now(tmp_path: Path) -> None:
    put(tmp_path / "https/host/a", "https://host/a", used=9e9)

    [item] = Cache(tmp_path).items()

    assert item.used_s_ago == 0


def test_a_removal_that_breaks_off_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "https/host/a"
    put(home, "https://host/a")

    def breaks_off(_folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(cached, "_clear", breaks_off)
    with pytest.raises(OSError, match="Input/output"):
        evict(Cache(tmp_path), "https://host/a")

    assert (home / "m.gguf").exists()
    assert marker.whole(home, "https://host/a") is None
    assert Cache(tmp_path).items() == []


def test_the_cache_itself_stays_where_nothing_else_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    put(root / "https/host/a", "https://host/a")
    [item] = Cache(root).items()
    (root / WORK / "clock").unlink()
    (root / WORK).rmdir()

    Cache(root).evict(item)

    assert list(root.iterdir()) == []


def test_what_is_not_pinned_can_be_unpinned(tmp_path: Path) -> None:
    put(tmp_path / "https/host/a", "https://host/a")
    [item] = Cache(tmp_path).items()

    Cache(tmp_path).unpin(item)

    assert Cache(tmp_path).items()[0].pinned is False


def test_a_cache_that_is_gone_or_broken_in_parts_is_no_fault(tmp_path: Path) -> None:
    """On a shared file system it may be, at any moment."""
    assert Cache(tmp_path / "none").items() == []
    Cache(tmp_path / "none").used(tmp_path / "none/https/host/a")
    put(tmp_path / "https/host/a", "https://host/a")
    put(tmp_path / "https/host/b", "https://host/b")
    (tmp_path / "https/host/b" / marker.NAME).write_text("{")
    Cache(tmp_path).hold("n1", ["https://host/a"])
    (tmp_path / WORK / "holds/gone.json").symlink_to("nowhere")

    found = {Path(item.folder).name: item for item in Cache(tmp_path).items()}

    assert found["a"].in_use == "a replica uses it"
    assert (found["b"].files, found["b"].sources) == (0, ())


def test_another_digest_is_another_file(tmp_path: Path) -> None:
    put(tmp_path, "https://host/a")

    assert marker.whole(tmp_path, "https://host/a", "0" * 64) == ("m.gguf",)
    assert marker.whole(tmp_path, "https://host/a", "1" * 64) is None


def test_a_digest_is_known_until_the_file_changes(tmp_path: Path) -> None:
    file, read = tmp_path / "m.gguf", list[str]()

    def tell(_what: str, _done: int, _total: int) -> None:
        read.append("read")

    file.write_bytes(b"one")
    first = known_sha256(file, tmp_path / "cache", tell)
    assert known_sha256(file, tmp_path / "cache", tell) == first
    assert read == ["read"]

    file.unlink()
    file.write_bytes(b"two")
    assert known_sha256(file, tmp_path / "cache", tell) != first
    assert read == ["read", "read"]


def several(folder: Path) -> None:
    """Two files, of which one source needs both and another the good one."""
    entry = marker.Entry(size=10, sha256="0" * 64)
    folder.mkdir(parents=True)
    for name in ("bad", "good"):
        (folder / name).write_bytes(b"x" * 10)
    sources = {"hf://o/n": ("bad", "good"), "hf://o/n/good": ("good",)}
    files = {"bad": entry, "good": entry}
    marker.write(folder, marker.Marker(files=files, sources=sources, revision="r"))


def test_what_is_distrusted_takes_no_other_file_with_it(tmp_path: Path) -> None:
    """A mirror's list that named the source would be one file short."""
    folder = tmp_path / "hf/o/n/abc"
    several(folder)
    cache = Cache(tmp_path)
    [item] = cache.items()

    assert cache.distrust(item, "bad") == "is removed"
    known = marker.read(folder)
    assert set(known.files) == {"good"}
    assert known.sources == {"hf://o/n/good": ("good",)}
    assert known.revision == "r"
    assert not (folder / "bad").exists()
    assert (folder / "good").exists()


def test_what_another_node_holds_is_distrusted_and_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "hf/o/n/abc"
    several(folder)
    cache = Cache(tmp_path)
    cache.hold("other", ["hf://o/n"])
    [item] = cache.items()

    assert cache.distrust(item, "bad") == "is no longer taken for whole"
    assert marker.whole(folder, "hf://o/n") is None
    assert (folder / "bad").exists()
