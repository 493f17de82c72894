"""Install engine builds: fetch, verify, unpack aside, publish by one rename.

    engines_dir/.builds/SHA256/     what was unpacked, never changed again
    engines_dir/NAME                a link to it; replaced as a whole
    engines_dir/.previous/NAME      the link before that, for rolling back

A running engine keeps the folder it was started from, whatever the name now means. Two
are kept for each name, the present one and the one before; older ones go (sweep.py).
"""

import hashlib
import os
import re
import secrets
import ssl
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import httpx
import msgspec

from llmgw.config import keys
from llmgw.config.address import masked, shown
from llmgw.engines.installed import MANIFEST, PROGRAMS, Manifest, read
from llmgw.engines.place import Build
from llmgw.engines.sweep import PREVIOUS, STORE, alone, sweep
from llmgw.engines.unpack import CHUNK, Cap, remove, unpack
from llmgw.errors import EngineError, Unreachable

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"

# The digest is of the file, not of what a server made of it on the way.
_AS_IT_IS = {"Accept-Encoding": "identity"}

Fetch = Callable[[str, Path], Awaitable[None]]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What to install. *engine* and *binary*: where the archive has no manifest."""

    name: str
    url: str
    sha256: str
    engine: str | None = None
    binary: str | None = None


async def install(
    wish: Wish, engines_dir: Path, *, fetch: Fetch | None = None, cap: Cap | None = None
) -> Build:
    """The build, at hand under its name. Installing it again costs nothing.

    Unreachable where trying again may help, EngineError where it will not. Whatever
    happens, and whenever it is interrupted, the name means a whole build or none.
    """
    _check(wish)
    there = await anyio.to_thread.run_sync(_present, wish, engines_dir)
    if there is not None:
        return there
    aside = await anyio.to_thread.run_sync(_make_aside, engines_dir)
    try:
        archive = aside / "archive"
        await (fetch or download)(wish.url, archive)
        return await anyio.to_thread.run_sync(
            _publish, wish, archive, engines_dir, cap or Cap()
        )
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove, aside)


async def download(url: str, to: Path, *, cap: Cap | None = None) -> None:
    """*url* into the file *to*; file:// too. httpx's own proxies, https after https."""
    limit = (cap or Cap()).size
    if url.startswith("file://"):
        async with aclosing(_read(_path(url))) as chunks:
            await _save(chunks, to, limit, masked(url))
        return
    # The machine's own authorities, as for weights: httpx brings a list of its own.
    trust = await anyio.to_thread.run_sync(ssl.create_default_context)
    try:
        async with (
            httpx.AsyncClient(
                follow_redirects=True, timeout=30, verify=trust
            ) as client,
            client.stream("GET", url, headers=_AS_IT_IS) as response,
        ):
            _accept(response, url)
            await _save(response.aiter_raw(CHUNK), to, limit, masked(url))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        # No HTTPError: a control plane that named `http://[::1/b.tgz` ended the agent.
        raise _no_address(url) from error
    except httpx.HTTPError as error:
        raise Unreachable(str(error) or "no answer", where=masked(url)) from error


def _path(url: str) -> Path:
    try:
        path = unquote(urlsplit(url).path)
    except ValueError as error:
        raise _no_address(url) from error
    if "\0" in path:
        raise _no_address(url)
    return Path(path)


def _no_address(url: str) -> EngineError:
    return EngineError(
        "is no https://, http:// or file:// address",
        where=shown(url),
        fix="give the address of the archive, or its file",
    )


def _accept(response: httpx.Response, url: str) -> None:
    if url.startswith("https:") and response.url.scheme != "https":
        raise EngineError(
            f"is redirected to {response.url}, not https", where=masked(url)
        )
    if response.status_code >= 500 or response.status_code == 429:
        raise Unreachable(f"answers {response.status_code}", where=masked(url))
    if response.status_code != 200:
        fix = "correct the address" if response.status_code in (404, 410) else ""
        raise EngineError(f"answers {response.status_code}", where=masked(url), fix=fix)


async def _read(source: Path) -> AsyncGenerator[bytes, None]:
    try:
        # A control plane may name it: of /dev/zero there is no end, of a pipe no begin.
        if not stat.S_ISREG((await anyio.Path(source).stat()).st_mode):
            raise EngineError("is no file", where=str(source))
        async with await anyio.open_file(source, "rb") as file:
            while chunk := await file.read(CHUNK):
                yield chunk
    except OSError as error:
        raise EngineError(
            f"cannot be read: {error.strerror}", where=str(source)
        ) from error


async def _save(chunks: AsyncIterator[bytes], to: Path, limit: int, where: str) -> None:
    try:
        async with await anyio.open_file(to, "wb") as file:
            async for chunk in chunks:
                limit -= len(chunk)
                if limit < 0:
                    raise EngineError("is larger than a build may be", where=where)
                await file.write(chunk)
    except OSError as error:
        # Not the file's own name, which is gone with it.
        raise EngineError(
            f"the archive cannot be written: {error.strerror}",
            where=str(to.parents[1]),
            fix="make room there, or set engines_dir to another folder",
        ) from error


def _check(wish: Wish) -> None:
    if not re.fullmatch(NAME, wish.name):
        raise EngineError(
            f"{wish.name!r} is no name for a build",
            where="name",
            fix="letters, digits, dots, dashes and underscores, at most 63",
        )
    if not re.fullmatch(r"[0-9a-fA-F]{64}", wish.sha256):
        raise EngineError(
            f"{wish.sha256!r} is no SHA-256",
            where="sha256",
            fix="64 hexadecimal digits, as `sha256sum ARCHIVE` prints them",
        )
    if not wish.url.startswith(("https://", "http://", "file:///")):
        raise _no_address(wish.url)


def _present(wish: Wish, engines_dir: Path) -> Build | None:
    """The build, if the name already means it."""
    link, store = engines_dir / wish.name, _store(wish, engines_dir)
    if link.is_symlink() and link.resolve().is_relative_to(store.resolve()):
        return read(link)
    if link.exists() and not link.resolve().is_relative_to(_builds(engines_dir)):
        raise EngineError(
            "is there and was not installed by llmgw",
            where=str(link),
            fix="choose another name with --name",
        )
    return None


def _builds(engines_dir: Path) -> Path:
    return (engines_dir / STORE).resolve()


def _store(wish: Wish, engines_dir: Path) -> Path:
    return engines_dir / STORE / wish.sha256.lower()


def _make_aside(engines_dir: Path) -> Path:
    """A folder of this process alone, on the same disk. Sweeps those of the dead."""
    try:
        (engines_dir / STORE).mkdir(parents=True, exist_ok=True)
        for old in engines_dir.glob(".tmp-*-*"):
            pid = old.name.split("-")[1]
            if not Path("/proc", pid).exists():
                remove(old)
        aside = engines_dir / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
        aside.mkdir()
    except OSError as error:
        raise EngineError(
            f"cannot be written: {error.strerror}",
            where=str(engines_dir),
            fix="set engines_dir in the node's file to a folder the agent may write",
        ) from error
    return aside


def _publish(wish: Wish, archive: Path, engines_dir: Path, cap: Cap) -> Build:
    try:
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wish.sha256.lower():
            raise EngineError(
                f"has the SHA-256 {found}, not {wish.sha256}",
                where=masked(wish.url),
                fix="is it the version, and the sum, that its maker publishes?",
            )
        fresh = archive.with_name("build")
        fresh.mkdir()
        home = _unpacked(wish, archive, fresh, cap)
        store = _store(wish, engines_dir)
        # On the disk before it has its name: after a power cut, a name without
        # contents would be taken for the whole build.
        os.sync()
        with alone(engines_dir):
            if not store.exists():
                fresh.rename(store)
            point(engines_dir, wish.name, store / home.relative_to(fresh))
            sweep(engines_dir)
        return read(engines_dir / wish.name)
    except OSError as error:
        raise EngineError(
            f"cannot be written: {error.strerror}", where=str(engines_dir)
        ) from error


def _unpacked(wish: Wish, archive: Path, fresh: Path, cap: Cap) -> Path:
    """The build's folder, whole. What is wrong is said of where the archive came from:
    where it lay meanwhile is gone by the time somebody looks.
    """
    try:
        unpack(archive, fresh, cap=cap)
        home = _home(fresh)
        _describe(wish, home)
        read(home)
    except EngineError as error:
        raise EngineError(
            error.what, where=masked(wish.url), fix=error.fix, final=error.final
        ) from error
    return home


def _home(fresh: Path) -> Path:
    """Where the build begins: archives often have one folder around everything."""
    entries = list(fresh.iterdir())
    if len(entries) == 1 and entries[0].is_dir():
        return entries[0]
    return fresh


def _describe(wish: Wish, home: Path) -> None:
    """The manifest, with the digest that says which archive this was."""
    path = home / MANIFEST
    if path.is_file():
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.DecodeError as error:
            raise EngineError(
                f"its {MANIFEST} is no manifest: {error}", where=masked(wish.url)
            ) from error
        if wish.engine not in (None, manifest.engine):
            raise EngineError(
                f"is a build of {manifest.engine}, not of {wish.engine}",
                where=masked(wish.url),
            )
    else:
        manifest = _guess(wish, home)
    manifest = msgspec.structs.replace(manifest, digest=f"sha256:{wish.sha256.lower()}")
    path.unlink(missing_ok=True)
    path.write_bytes(msgspec.json.encode(manifest))


def _guess(wish: Wish, home: Path) -> Manifest:
    """An archive as its makers publish it, a wheel say: it has one such program."""
    engine = wish.engine or "llamacpp"
    if engine not in keys.Engines.__struct_fields__:
        known = ", ".join(keys.Engines.__struct_fields__)
        raise EngineError(
            f"no engine is called {engine!r}", where="engine", fix=f"one of {known}"
        )
    if wish.binary is not None:
        return Manifest(engine=engine, binary=wish.binary)
    program = PROGRAMS.get(engine)
    found = [
        str(path.relative_to(home))
        for path in sorted(home.rglob(program) if program else ())
        if path.is_file() and os.access(path, os.X_OK)
    ]
    if len(found) != 1:
        count = f"{len(found)} programs" if found else "no program"
        these = f": {', '.join(found[:4])}" if found else ""
        raise EngineError(
            f"has no {MANIFEST}, and {count} {program or 'to guess'}{these}",
            where=masked(wish.url),
            fix="say which with --binary PATH, and of which engine with --engine",
        )
    return Manifest(engine=engine, binary=found[0])


def point(engines_dir: Path, name: str, to: Path) -> None:
    """Let *name* mean *to*, at once; what it meant is kept for rolling back."""
    link = engines_dir / name
    before = link.readlink() if link.is_symlink() else None
    _replace(link, Path(os.path.relpath(to, engines_dir)))
    if before is not None:
        previous = engines_dir / PREVIOUS / name
        previous.parent.mkdir(exist_ok=True)
        _replace(previous, before)


def roll_back(engines_dir: Path, name: str) -> Build:
    """Let *name* mean the build before this one; once more, and it is back again."""
    previous = engines_dir / PREVIOUS / name
    if not previous.is_symlink():
        raise EngineError(
            f"there is no build before this one of {name}",
            where=str(engines_dir),
            fix="there is one once another was installed under its name; "
            "`llmgw engines list` has the names",
        )
    if not (engines_dir / previous.readlink()).exists():
        raise EngineError(
            f"the build before this one of {name} is gone",
            where=str(previous),
            fix=f"llmgw engines install URL --sha256 SUM --name {name}",
        )
    with alone(engines_dir):
        point(engines_dir, name, engines_dir / previous.readlink())
    return read(engines_dir / name)


def _replace(link: Path, target: Path) -> None:
    fresh = link.with_name(f".link-{secrets.token_hex(4)}")
    fresh.symlink_to(target)
    fresh.replace(link)
