"""Which engine builds this node has, and which of them a replica gets.

A build is a folder of `engines_dir` with a `manifest.json`:

    {"engine": "llamacpp", "version": "b10434", "binary": "bin/llama-server",
     "features": ["vulkan"], "digest": "sha256:…"}

A link into the Nix store is such a folder too. Beside them there is the program that
the node's file names (`engines.<kind>.path`), and what stands on PATH.
"""

import re
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from llmgw import files
from llmgw.config import keys
from llmgw.engines.place import Build, Settings
from llmgw.errors import EngineError
from llmgw.wire import Problem, Replica

MANIFEST = "manifest.json"
LIMIT = 1024 * 1024
NIX_STORE = "/nix/store/"

# The names of builds that are no folder. A folder's name has no brackets.
FROM_FILE = "(path)"
FROM_PATH = "(PATH)"

RPC_SERVERS = ("rpc-server", "ggml-rpc-server")
PROGRAMS = {"llamacpp": "llama-server", "vllm": "vllm", "sglang": "sglang"}


class Manifest(Struct, frozen=True, kw_only=True):
    """What a build says of itself. *binary* is relative to the build's folder."""

    engine: str
    binary: str
    version: str | None = None
    features: tuple[str, ...] = ()
    digest: str | None = None


class Builds(Struct, frozen=True):
    """What was found, and what looks like a build but cannot be used."""

    builds: tuple[Build, ...]
    problems: tuple[Problem, ...] = ()


def survey(
    engines_dir: Path, settings: keys.Engines, *, search_path: str | None = None
) -> Builds:
    """Every build on this node; *search_path* as in PATH, None for the process's own.

    Reads a few small files and may hang with their file system: call it in a thread.
    """
    found: list[Build] = []
    problems: list[Problem] = []
    for folder in _folders(engines_dir):
        try:
            found.append(read(folder))
        except EngineError as error:
            problems.append(
                Problem(
                    code="broken_build",
                    severity="warning",
                    what=error.what,
                    where=error.where,
                    fix=error.fix or None,
                )
            )
    for kind in keys.Engines.__struct_fields__:
        section: Settings = getattr(settings, kind)
        if section.path is not None:
            found.append(plain(FROM_FILE, kind, section.path))
        program = shutil.which(PROGRAMS.get(kind, ""), path=search_path)
        if program is not None:
            found.append(plain(FROM_PATH, kind, program))
    return Builds(tuple(found), tuple(problems))


def _folders(engines_dir: Path) -> list[Path]:
    """The folders that have a manifest, links followed, by name."""
    try:
        entries = sorted(engines_dir.iterdir())
    except OSError:  # there is none, or it is not ours to read: then it holds no build
        return []
    return [
        entry
        for entry in entries
        if not entry.name.startswith(".") and (entry / MANIFEST).exists()
    ]


def read(folder: Path) -> Build:
    """The build in *folder*; EngineError if its manifest or binary is not usable."""
    where = str(folder / MANIFEST)
    try:
        manifest = msgspec.json.decode(
            files.read(folder / MANIFEST, LIMIT), type=Manifest
        )
    except OSError as error:
        raise EngineError(f"cannot be read: {error.strerror}", where=where) from error
    except msgspec.DecodeError as error:
        raise EngineError(f"is no manifest: {error}", where=where) from error
    home = folder.resolve()
    binary = (home / manifest.binary).resolve()
    if not binary.is_relative_to(home) and not str(binary).startswith(NIX_STORE):
        raise EngineError(
            f"the binary {manifest.binary} lies outside of the build", where=where
        )
    if not binary.is_file():
        raise EngineError(f"there is no binary {manifest.binary}", where=where)
    return Build(
        name=folder.name,
        engine=manifest.engine,
        binary=str(home / manifest.binary),
        version=manifest.version,
        features=manifest.features,
        digest=manifest.digest or _store_digest(home),
        rpc_binary=_rpc_server(home / manifest.binary),
    )


def plain(name: str, kind: str, binary: str) -> Build:
    """A program without a manifest. What is in the Nix store is known all the same."""
    real = Path(binary).resolve()
    return Build(
        name=name,
        engine=kind,
        binary=binary,
        digest=_store_digest(real),
        rpc_binary=_rpc_server(real),
    )


def _rpc_server(binary: Path) -> str | None:
    """llama.cpp's two programs lie side by side."""
    if binary.name != PROGRAMS["llamacpp"]:
        return None
    beside = (binary.with_name(name) for name in RPC_SERVERS)
    return next((str(path) for path in beside if path.is_file()), None)


def _store_digest(home: Path) -> str | None:
    """A store path's own name says what is in it."""
    if not str(home).startswith(NIX_STORE):
        return None
    return f"nix:{home.relative_to(NIX_STORE).parts[0]}"


def choose(builds: tuple[Build, ...], replica: Replica) -> Build:
    """The build that *replica* names; else the newest, else the one on PATH.

    Where the node's file names a program, there is no other. It has to for the engine
    `command`: a build of engines_dir is one that a control plane may have installed.
    """
    kind = replica.engine
    ours = [build for build in builds if build.engine == kind]
    own = [build for build in ours if build.name == FROM_FILE]
    if own or kind == "command":
        ours = own
    if replica.build is not None:
        return _named(ours, replica.build, kind)
    if not ours:
        raise EngineError(
            f"there is no build of {kind} on this node",
            where="engine",
            fix=f"llmgw engines install URL --sha256 SUM, or set engines.{kind}.path",
        )
    return max(ours, key=_preference)


def _named(ours: list[Build], name: str, kind: str) -> Build:
    for build in ours:
        if build.name == name:
            return build
    known = ", ".join(build.name for build in ours) or "none"
    raise EngineError(
        f"there is no build {name} of {kind} on this node; it has: {known}",
        where="build",
        fix="llmgw engines install URL --sha256 SUM",
    )


def _preference(build: Build) -> tuple[int, list[tuple[int, str]]]:
    rank = 0 if build.name == FROM_PATH else 1
    return rank, _natural(build.version or build.name)


def _natural(text: str) -> list[tuple[int, str]]:
    """b9999 before b10434: numbers compare as numbers."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.split(r"(\d+)", text)
    ]
