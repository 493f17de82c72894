"""What the number of CPU threads is worth: `python -m tests.bench.threads`

Two real llama.cpp replicas of one small model answer at the same time on this
machine's CPUs: with the threads that the agent gives them, with llama.cpp's own
choice (`--threads -1`), and with as many as there are CPUs. The settings take turns,
so that a busy minute of the machine falls on all of them. On a machine that others
keep busy too, more threads win only because they are given more of the CPUs: run it
under `nice -n -20`, or alone.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.engines.threads import Cpus, share
from llmgw.wire import Model, Replica
from tests.models import pinned

HOST = "127.0.0.1"
REPLICAS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="in each answer")
    arguments = parser.parse_args()
    try:
        build, model = pinned.llama(), pinned.smollm()
    except pinned.NotToBeHad as reason:
        sys.exit(f"threads: not measured: {reason}")
    cpus = Cpus(allowed=tuple(sorted(os.sched_getaffinity(0))))
    settings = {
        "agent": share(cpus, REPLICAS).count,
        "llama.cpp's own": -1,
        "all CPUs": len(cpus.allowed),
    }
    load = os.getloadavg()[0]
    speeds: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(arguments.rounds):
        for name, threads in settings.items():
            speeds[name].append(together(build, model, threads, arguments.tokens))
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    found = {
        "cpus": len(cpus.allowed),
        "load_before": round(load, 1),
        "replicas": REPLICAS,
        "threads": settings,
        "tokens_per_s": {name: round(one, 1) for name, one in medians.items()},
        "spread": {
            name: [round(min(one), 1), round(max(one), 1)]
            for name, one in speeds.items()
        },
        "ratio": {
            f"agent / {name}": round(medians["agent"] / one, 2)
            for name, one in medians.items()
            if name != "agent"
        },
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def together(build: Build, model: Path, threads: int, tokens: int) -> float:
    """Tokens a second of all replicas while all of them answer."""
    with ExitStack() as running:
        ports = [
            running.enter_context(serving(build, model, threads))
            for _ in range(REPLICAS)
        ]
        with ThreadPoolExecutor(REPLICAS) as pool:
            list(pool.map(partial(answer, 8), ports))  # pages, caches
            began = time.perf_counter()
            list(pool.map(partial(answer, tokens), ports))
            return REPLICAS * tokens / (time.perf_counter() - began)


@contextmanager
def serving(build: Build, model: Path, threads: int) -> Generator[int, None, None]:
    """One replica as the agent launches it, but for the threads."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    place = Place(
        settings=keys.LlamaCpp(),
        build=build,
        ports={"api": port},
        host=HOST,
        weights={"model": str(model)},
        threads=threads,
    )
    wanted = Replica(
        id="bench",
        generation=1,
        engine="llamacpp",
        model=Model(name="bench", source="model"),
        context=512,
        parallel=1,
    )
    launch = engines.launch(wanted, place)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(launch.argv, env={**os.environ, **launch.env}, **quiet) as it:
        try:
            until_healthy(port)
            yield port
        finally:
            it.kill()


def until_healthy(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            pause()
        else:
            return


def pause() -> None:
    """A moment between two questions; it is no part of what is measured."""
    time.sleep(0.05)  # noqa: TID251 -- no event loop runs here


def answer(tokens: int, port: int) -> None:
    body = {
        "prompt": "Once upon a time",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://{HOST}:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        said = json.load(reply)
    assert said["usage"]["completion_tokens"] == tokens


if __name__ == "__main__":
    main()
