"""What an archive may not do, whichever kind of archive it is."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from llmgw.engines.unpack import Cap, unpack
from llmgw.errors import EngineError


class Item(Struct, frozen=True):
    """A file of an archive, or a link if *target* is said."""

    name: str
    content: bytes = b""
    mode: int = 0o644
    target: str = ""
    kind: bytes = tarfile.REGTYPE


def tar(path: Path, *items: Item) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for item in items:
            info = tarfile.TarInfo(item.name)
            info.mode, info.size = item.mode, len(item.content)
            info.type = tarfile.SYMTYPE if item.target else item.kind
            info.linkname = item.target
            archive.addfile(info, io.BytesIO(item.content))
    return path


def wheel(path: Path, *items: Item) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item in items:
            info = zipfile.ZipInfo(item.name)
            form = stat.S_IFLNK if item.target else stat.S_IFREG
            info.external_attr = (form | item.mode) << 16
            content = item.target.encode() or item.content
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


Make = Callable[..., Path]
both = pytest.mark.parametrize("make", [tar, wheel])


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


@both
def test_files_links_and_the_right_to_run(
    make: Make, tmp_path: Path, into: Path
) -> None:
    archive = make(
        tmp_path / "a",
        Item("bin/run", b"#!", 0o777),
        Item("lib/x.so.1", b"x", 0o600),
        Item("lib/x.so", target="x.so.1"),
        Item("bin/x.so", target="../lib/x.so"),
    )

    unpack(archive, into)

    assert (into / "bin/x.so").read_bytes() == b"x"
    assert stat.S_IMODE((into / "bin/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((into / "lib/x.so.1").stat().st_mode) == 0o644


@both
@pytest.mark.parametrize(
    ("items", "what"),
    [
        ([Item("../evil")], "outside of its folder"),
        ([Item("a/../../evil")], "outside of its folder"),
        ([Item("/tmp/evil")], "outside of its folder"),
        ([Item("out", target="/etc")], "link that leads out"),
        ([Item("a/out", target="../../x")], "link that leads out"),
        (
            [
                Item("d/f"),
                Item("d/here", target="."),
                Item("out", target="d/here/../.."),
            ],
            "link that leads out",
        ),
        (
            [
                Item("d/f"),
                Item("d/here", target="."),
                Item("out", target="d/here/../.."),
                Item("out/evil"),
            ],
            "write through a link",
        ),
        ([Item("a", target="b"), Item("b", target="a")], "link that leads out"),
        ([Item("run", mode=0o4755)], "setuid"),
        ([Item("run", mode=0o2755)], "setuid"),
        ([Item("a"), Item("a")], "has a twice"),
        ([Item("d/f"), Item("l", target="d"), Item("l")], "has l twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_reaches_out_is_refused(
    make: Make, items: list[Item], what: str, tmp_path: Path, into: Path
) -> None:
    archive = make(tmp_path / "a", *items)
    before = sorted(tmp_path.iterdir())

    with pytest.raises(EngineError, match=what):
        unpack(archive, into)

    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (Item("dev", kind=tarfile.CHRTYPE), "no file"),
        (Item("pipe", kind=tarfile.FIFOTYPE), "no file"),
    ],
)
def test_devices_and_pipes_are_refused(
    item: Item, what: str, tmp_path: Path, into: Path
) -> None:
    with pytest.raises(EngineError, match=what):
        unpack(tar(tmp_path / "a", item), into)


@pytest.mark.parametrize(
    ("target", "what"), [("a", None), ("/etc/passwd", "leads out"), ("../x", "leads")]
)
def test_hard_links_stay_inside(
    target: str, what: str | None, tmp_path: Path, into: Path
) -> None:
    with tarfile.open(tmp_path / "a", "w") as archive:
        info = tarfile.TarInfo("a")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
        link = tarfile.TarInfo("b")
        link.type, link.linkname = tarfile.LNKTYPE, target
        archive.addfile(link)

    if what is not None:
        with pytest.raises(EngineError, match=what):
            unpack(tmp_path / "a", into)
        return
    unpack(tmp_path / "a", into)
    assert (into / "b").read_bytes() == b"x"


@both
def test_a_small_file_does_not_fill_a_disk(
    make: Make, tmp_path: Path, into: Path
) -> None:
    archive = make(tmp_path / "a", Item("zeros", bytes(5_000_000)))
    assert archive.stat().st_size < 100_000

    with pytest.raises(EngineError, match="becomes more than 2000000 bytes"):
        unpack(archive, into, cap=Cap(size=2_000_000))

    assert sum(file.stat().st_size for file in into.iterdir()) < 3_100_000


@both
def test_the_number_of_files_has_a_limit_too(
    make: Make, tmp_path: Path, into: Path
) -> None:
    archive = make(tmp_path / "a", *(Item(f"f{number}") for number in range(5)))

    with pytest.raises(EngineError, match="more than 4 entries"):
        unpack(archive, into, cap=Cap(entries=4))


@both
def test_half_an_archive_is_said_to_be_damaged(
    make: Make, tmp_path: Path, into: Path
) -> None:
    archive = make(tmp_path / "a", Item("x", b"\x01\x02" * 100_000))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(EngineError, match=r"is damaged|is no tar"):
        unpack(archive, into)


def test_something_else_is_no_archive(tmp_path: Path, into: Path) -> None:
    (tmp_path / "a").write_text("<html>not found</html>")

    with pytest.raises(EngineError, match="is no tar, zip or wheel"):
        unpack(tmp_path / "a", into)


paths = st.lists(
    st.sampled_from(["..", ".", "a", "b", "c", ""]), min_size=1, max_size=5
).map("/".join)
items = st.builds(Item, paths, target=st.one_of(st.just(""), paths))


@given(st.lists(items, max_size=6))
@settings(max_examples=60, deadline=None)
def test_whatever_it_says_nothing_lands_or_leads_outside(several: list[Item]) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made).resolve()
        into = folder / "x/y/into"
        into.mkdir(parents=True)
        accepted = True
        try:
            unpack(tar(folder / "a", *several), into)
        except EngineError:
            accepted = False

        assert {path.name for path in folder.iterdir()} == {"a", "x"}
        assert [path.name for path in (folder / "x").iterdir()] == ["y"]
        assert [path.name for path in (folder / "x/y").iterdir()] == ["into"]
        if accepted:
            for path in into.rglob("*"):
                assert path.resolve().is_relative_to(into)
