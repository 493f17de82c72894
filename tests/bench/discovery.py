"""How fast a machine is looked at: `python -m tests.bench.discovery`.

A tree of 100,000 files, of which a thousand are model files, scanned by the probe's
child against `find -printf`; the same again without changes; and a whole survey of this
machine. Each number is the best of several, so that the disk cache is warm for both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from llmgw.agent.inventory import Inventory
from llmgw.config.keys import Config
from llmgw.discovery.child import Child
from llmgw.weights.local import survey

FILES, MODELS = 100, 1
ROUNDS = 5
BUDGETS = {"scan": 2.0, "rescan": 1.2, "survey_s": 0.150}


def header() -> bytes:
    """The smallest GGUF file that says its architecture."""
    key, value = b"general.architecture", b"llama"
    pair = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little")
    pair += len(value).to_bytes(8, "little") + value
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little")
    return head + (1).to_bytes(8, "little") + pair


def tree(top: Path, files: int) -> None:
    """With a FIFO, that whoever opens it would wait at for ever."""
    for folder in range(files // FILES):
        home = top / f"group{folder % 20}" / f"folder{folder}"
        home.mkdir(parents=True)
        for number in range(FILES - MODELS):
            (home / f"part-{number}.bin").touch()
        for number in range(MODELS):
            (home / f"model-{number}.gguf").write_bytes(header())
    os.mkfifo(top / "pipe.gguf")


def best(action: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def find(top: Path) -> None:
    command = ["find", str(top), "-printf", "%p %s %T@\\n"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


async def whole(folder: Path) -> float:
    """One survey of this machine, everything that has to be loaded being loaded."""
    config = Config(
        servers=(), model_dirs=(str(folder),), engines_dir=str(folder / "engines")
    )
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await Inventory(config).once()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    files: int = parser.parse_args().files
    with tempfile.TemporaryDirectory() as name:
        top = Path(name) / "tree"
        tree(top, files)
        (Path(name) / "empty").mkdir()
        began = time.monotonic()
        child = Child("llmgw.weights.local", "survey", is_bare=True)
        ask: dict[str, Any] = {"folders": [str(top)]}
        finding = best(lambda: find(top))
        scan = best(lambda: child.ask(ask, 120))
        # A folder changed in the last seconds is not yet believed to stay as it is.
        while time.monotonic() - began < 4:
            find(top)
        memory = survey([str(top)]).memory
        rescan = best(lambda: child.ask({**ask, "memory": memory}, 120))
        survey_s = anyio.run(whole, Path(name) / "empty")
    said = {
        "files": files,
        "find_s": finding,
        "scan": scan / finding,
        "rescan": rescan / finding,
        "survey_s": survey_s,
    }
    rounded = {key: round(value, 3) for key, value in said.items()}
    sys.stdout.write(json.dumps(rounded) + "\n")
    return int(any(said[key] > budget for key, budget in BUDGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
