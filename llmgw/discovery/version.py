"""Which version an engine is: the program is asked, once for each change of it."""

import os
import re
import signal
import subprocess

_VERSION = {
    # `version: 5510 (a1b2c3d)`; a build of a distribution: `version: 0.7.0-…`
    "llamacpp": re.compile(r"version:\s*(\S+)"),
    "vllm": re.compile(r"(\d+\.\d+\.\d+\S*)"),
    "sglang": re.compile(r"(\d+\.\d+\.\d+\S*)"),
}
# What llama.cpp says of the devices that it found.
_FEATURES = ("CUDA", "ROCm", "Vulkan", "Metal", "SYCL", "RPC", "BLAS")


def stamp(binary: str) -> str:
    """Another one when the program is another. OSError if it is gone."""
    found = os.stat(binary)  # noqa: PTH116 -- a string is what we have
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def ask(kind: str, binary: str, limit: float) -> dict[str, object]:
    """`{version, features}` as far as it says so, or `{reason}`.

    An engine's Python may take ten seconds to say its version, or for ever.
    """
    pattern = _VERSION.get(kind)
    if pattern is None:
        return {}
    try:
        said = _run([binary, "--version"], limit)
    except OSError as error:
        return {"reason": f"cannot be run: {error.strerror}"}
    except subprocess.TimeoutExpired:
        return {"reason": f"--version has not answered for {limit:g} s"}
    found = pattern.search(said)
    if found is None:
        last = said.strip().splitlines()[-1:] or ["nothing"]
        return {"reason": f"--version says: {last[0][:200]}"}
    features = [name.lower() for name in _FEATURES if f"{name} " in said]
    return {"version": found[1], "features": features}


def _run(command: list[str], limit: float) -> str:
    """Both outputs. On time-out the whole session is ended, not only its first."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return said.decode(errors="replace")
