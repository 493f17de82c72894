"""What an archive may not do, whichever kind of archive it is."""

import io
import random
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from llmgw.engines.unpack import Cap, unpack
from llmgw.errors import EngineError
from tests.fakes.disks import small


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


FORMS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}


def wheel(path: Path, *items: Item) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item in items:
            info = zipfile.ZipInfo(item.name)
            form = stat.S_IFLNK if item.target else FORMS[item.kind]
            info.external_attr = (form | item.mode) << 16
            content = item.target.encode() or item.content
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


Make = Callable[..., Path]
ZIPPED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
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
        ([Item("")], "write through a link"),
        ([Item("a"), Item("a")], "has a twice"),
        ([Item("l", target="nowhere"), Item("l")], "has l twice"),
        ([Item("a\\b")], "outside of its folder"),
        (
            [
                Item("d/f"),
                Item("d/here", target="."),
                Item("out", target="d/here/../../nowhere"),
            ],
            "link that leads out",
        ),
        ([Item("a"), Item("a/b")], "contradicts itself"),
        (
            [Item("a", target="b"), Item("b", target="a"), Item("a/f")],
            "contradicts itself|through a link",
        ),
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


@both
@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_refused(
    make: Make, kind: bytes, tmp_path: Path, into: Path
) -> None:
    with pytest.raises(EngineError, match="something that is no file: it"):
        unpack(make(tmp_path / "a", Item("it", kind=kind)), into)


@both
def test_a_link_that_leads_out_is_not_even_made(
    make: Make, tmp_path: Path, into: Path
) -> None:
    """What is found out at the end may have been used by then."""
    archive = make(tmp_path / "a", Item("out", target="../x"))

    with pytest.raises(EngineError, match="leads out: out"):
        unpack(archive, into)

    assert list(into.iterdir()) == []


def test_a_name_with_a_nul_is_refused(tmp_path: Path, into: Path) -> None:
    with tarfile.open(tmp_path / "a", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"path": "x\0y"}
        archive.addfile(info)

    with pytest.raises(EngineError, match="outside of its folder"):
        unpack(tmp_path / "a", into)


def test_an_archive_may_begin_with_the_folder_itself(
    tmp_path: Path, into: Path
) -> None:
    """As `tar -C build -czf build.tgz .` packs one."""
    with tarfile.open(tmp_path / "a", "w:gz") as archive:
        folder = tarfile.TarInfo(".")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        archive.addfile(tarfile.TarInfo("./x"))

    unpack(tmp_path / "a", into)

    assert [path.name for path in into.iterdir()] == ["x"]


def test_a_hard_link_to_a_link_is_one_to_its_file(tmp_path: Path, into: Path) -> None:
    """The link itself, at another place, would lead elsewhere: out."""
    with tarfile.open(tmp_path / "a", "w") as archive:
        info = tarfile.TarInfo("x")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
        for name, kind, target in (
            ("d/s", tarfile.SYMTYPE, "../x"),
            ("b", tarfile.LNKTYPE, "d/s"),
        ):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            archive.addfile(link)

    unpack(tmp_path / "a", into)

    assert not (into / "b").is_symlink()
    assert (into / "b").samefile(into / "x")


def test_a_hard_link_through_a_link_that_leads_out_is_refused(
    tmp_path: Path, into: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    with tarfile.open(tmp_path / "a", "w") as archive:
        archive.addfile(tarfile.TarInfo("d/f"))
        for name, kind, target in (
            ("d/here", tarfile.SYMTYPE, "."),
            ("out", tarfile.SYMTYPE, "d/here/../.."),
            ("b", tarfile.LNKTYPE, "out/secret"),
        ):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            archive.addfile(link)

    with pytest.raises(EngineError, match="leads out: b"):
        unpack(tmp_path / "a", into)


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("a", None),
        ("/etc/passwd", "leads out"),
        ("../x", "leads"),
        (".", "contradicts itself"),
        ("nowhere", "contradicts itself"),
    ],
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


def packed(path: Path, how: str) -> Path:
    """Noise in a file of its own, packed in one of the ways that are known."""
    noise = random.Random(1).randbytes(20_000)
    if how.startswith("w"):
        with tarfile.open(path, how) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
            info = tarfile.TarInfo("x")
            info.size = len(noise)
            archive.addfile(info, io.BytesIO(noise))  # pyright: ignore[reportUnknownMemberType]
    else:
        with zipfile.ZipFile(path, "w", int(how)) as archive:
            archive.writestr("x", noise)
    return path


WAYS = ("w", "w:gz", "w:bz2", "w:xz", *map(str, ZIPPED))


@pytest.mark.parametrize("how", WAYS)
def test_a_flaw_in_an_archive_is_said_in_whatever_way_it_is_packed(
    how: str, tmp_path: Path
) -> None:
    """Each way has errors of its own. One that got through ended the agent, for a
    control plane's wish is a task of it."""
    whole = bytearray(packed(tmp_path / "a", how).read_bytes())
    said = 0
    dice = random.Random(2)
    for number in range(60):
        flawed = whole[:]
        for _ in range(1 + number % 3):
            # Half of them in the names and lengths at both ends.
            ends = (*range(600), *range(len(whole) - 300, len(whole)))
            place = dice.choice((dice.choice(ends), dice.randrange(len(whole))))
            flawed[place] ^= 1 << dice.randrange(8)
        (tmp_path / "b").write_bytes(flawed)
        try:
            unpack(tmp_path / "b", Path(mkdtemp(dir=tmp_path)))
        except EngineError:
            said += 1

    assert said > 0


def test_a_tar_that_ends_too_early_is_damaged(tmp_path: Path, into: Path) -> None:
    whole = packed(tmp_path / "a", "w").read_bytes()
    (tmp_path / "a").write_bytes(whole[:9000])

    with pytest.raises(EngineError, match="is damaged: unexpected end of data"):
        unpack(tmp_path / "a", into)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (10, 99, "packed in an unknown way"),
        (8, 1, "is encrypted"),
        (46, 0x80, "is damaged: 'utf-8'"),
    ],
)
def test_a_zip_that_cannot_be_read_is_said_to(
    at: int, value: int, what: str, tmp_path: Path, into: Path
) -> None:
    """A way of packing that nobody knows, a password, a name that is no text."""
    whole = bytearray(packed(tmp_path / "a", "0").read_bytes())
    entry = whole.index(b"PK\x01\x02")
    whole[entry + at] = value
    if at == 46:
        whole[entry + 9] |= 0x08  # names are UTF-8
    (tmp_path / "a").write_bytes(whole)

    with pytest.raises(EngineError, match=what):
        unpack(tmp_path / "a", into)


def test_the_target_of_a_link_is_not_read_without_an_end(
    tmp_path: Path, into: Path
) -> None:
    """A small zip can call gigabytes of zeros the target of a link."""
    with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("l")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, bytes(30_000_000), zipfile.ZIP_DEFLATED, 1)

    tracemalloc.start()
    with pytest.raises(EngineError, match="leads out"):
        unpack(tmp_path / "a", into)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 5_000_000


def test_a_full_disk_is_no_fault_of_the_archive(tmp_path: Path) -> None:
    archive = packed(tmp_path / "a", "w")
    with small(tmp_path / "disk", 1) as disk:
        (disk / "filler").write_bytes(bytes((1 << 20) - 8192))
        with pytest.raises(OSError, match="No space left"):
            unpack(archive, disk)


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
