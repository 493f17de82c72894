"""Which version an engine is: the program is asked, once for each change of it."""

import os
import re
import subprocess

from llmgw.discovery.found import Found

_VERSION = {
    # `version: 5510 (a1b2c3d)`; a build of a distribution: `version: 0.7.0-…`
    "llamacpp": re.compile(r"version:\s*(\S+)"),
    "vllm": re.compile(r"(\d+\.\d+\.\d+\S*)"),
    "sglang": re.compile(r"(\d+\.\d+\.\d+\S*)"),
}
# What llama.cpp says of the devices that it found.
_FEATURES = ("CUDA", "ROCm", "Vulkan", "Metal", "SYCL", "RPC", "BLAS")

# Bytes. One that says more, for ever perhaps, finds its pipe closed.
LIMIT = 64 * 1024


def stamp(binary: str) -> str:
    """Another one when the program is another. OSError if it is gone."""
    found = os.stat(binary)  # noqa: PTH116 -- a string is what we have
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def ask(kind: str, binary: str) -> Found:
    """`{version, features}` as far as it says so. Runs in a child, which is ended with
    all below it if the program does not return: an engine's Python may take ten seconds
    to say its version, or for ever.
    """
    source = f"{binary} --version"
    pattern = _VERSION.get(kind)
    if pattern is None:
        return Found({}, source)
    try:
        with subprocess.Popen(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            said = process.stdout.read(LIMIT).decode(errors="replace")
    except OSError as error:
        return Found(None, source, f"cannot be run: {error.strerror}")
    found = pattern.search(said)
    if found is None:
        last = said.strip().splitlines()[-1:] or ["nothing"]
        return Found(None, source, f"--version says: {last[0][:200]}")
    features = [name.lower() for name in _FEATURES if f"{name} " in said]
    return Found({"version": found[1], "features": features}, source)
