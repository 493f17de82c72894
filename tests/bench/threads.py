"""What the number of CPU threads is worth: `python -m tests.bench.threads`

Two real llama.cpp replicas of one small model answer at the same time on this
machine's CPUs: with the threads that the agent gives them, with llama.cpp's own
choice (`--threads -1`), and with as many as there are CPUs. The settings take turns,
so that a busy minute of the machine falls on all of them. On a machine that others
keep busy too, more threads are given more of the CPUs and look faster for it: there,
the tokens of each CPU second are what can be compared.

With --contended the second replica reads one long prompt after another instead, as it
does for an operator whose users paste documents, and what counts is what the first one
still answers meanwhile, and how many prompt tokens the second reads.
"""

import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.engines.threads import Cpus, share
from llmgw.wire import Model, Replica
from tests.models import pinned

HOST = "127.0.0.1"
REPLICAS = 2
WARM = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="each is watched")
    parser.add_argument(
        "--contended", action="store_true", help="one reads prompts meanwhile"
    )
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
    yields: dict[str, list[float]] = {name: [] for name in settings}
    prompts: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(arguments.rounds):
        for name, threads in settings.items():
            seen = together(
                build,
                model,
                threads,
                arguments.seconds,
                second=read if arguments.contended else answer,
            )
            speeds[name].append(seen.tokens / seen.seconds)
            yields[name].append((seen.tokens + seen.prompts) / seen.cpu_seconds)
            prompts[name].append(seen.prompts / seen.seconds)
    found = {
        "cpus": len(cpus.allowed),
        "load_before": round(load, 1),
        "replicas": REPLICAS,
        "threads": settings,
        "tokens_per_s": summary(speeds),
        "tokens_per_cpu_s": summary(yields),
    }
    if arguments.contended:
        found["prompt_tokens_per_s"] = summary(prompts)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


class Seen(NamedTuple):
    """What all replicas did together."""

    tokens: float
    prompts: float
    seconds: float
    cpu_seconds: float


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(one) for name, one in found.items()}
    return {
        "median": {name: round(one, 1) for name, one in medians.items()},
        "from_to": {
            name: [round(min(one), 1), round(max(one), 1)]
            for name, one in found.items()
        },
        "agent_over": {
            name: round(medians["agent"] / one, 2)
            for name, one in medians.items()
            if name != "agent" and one
        },
    }


def together(
    build: Build,
    model: Path,
    threads: int,
    seconds: float,
    *,
    second: Callable[[int], None],
) -> Seen:
    """A window in which all replicas work, from its beginning to its end."""
    with ExitStack() as running:
        servers = [
            running.enter_context(serving(build, model, threads))
            for _ in range(REPLICAS)
        ]
        pids, ports = zip(*servers, strict=True)
        with ThreadPoolExecutor(REPLICAS) as pool:
            works = (answer, second)
            answers = [
                pool.submit(work, port) for work, port in zip(works, ports, strict=True)
            ]
            answering = ports if second is answer else ports[:1]
            # Pages and caches are warm, and nobody is still reading its prompt.
            until(lambda: all(decoded(port) >= WARM for port in answering))
            before = looked(pids, ports, answering)
            pause(seconds)
            assert not any(one.done() for one in answers), "the window was too long"
            after = looked(pids, ports, answering)
            running.close()
            return Seen(*(b - a for a, b in zip(before, after, strict=True)))


def looked(
    pids: tuple[int, ...], ports: tuple[int, ...], answering: tuple[int, ...]
) -> Seen:
    return Seen(
        sum(map(decoded, answering)),
        sum(counted(port, "prompt_tokens_total") for port in ports),
        time.perf_counter(),
        sum(map(spent, pids)),
    )


def spent(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def decoded(port: int) -> float:
    """Tokens answered so far: one sequence runs, so one a step."""
    return counted(port, "n_decode_total")


def counted(port: int, name: str) -> float:
    text = get(port, "/metrics")
    [line] = re.findall(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE)
    return float(line)


@contextmanager
def serving(
    build: Build, model: Path, threads: int
) -> Generator[tuple[int, int], None, None]:
    """One replica as the agent launches it, but for the threads: pid and port."""
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
        context=8192,
        parallel=1,
    )
    launch = engines.launch(wanted, place)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(launch.argv, env={**os.environ, **launch.env}, **quiet) as it:
        try:
            until(lambda: is_healthy(port))
            yield it.pid, port
        finally:
            it.kill()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it has not come to that in a minute"
        pause(0.05)


def is_healthy(port: int) -> bool:
    try:
        get(port, "/health")
    except OSError:
        return False
    return True


def pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 -- no event loop runs here


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=30) as reply:
        return reply.read().decode()


def read(port: int) -> None:
    """Prompts of a hundred tokens, none like the one before, until it is ended."""
    number = 0
    while True:
        number += 1
        prompt = f"{number} " + f"the story of number {number} and its kin. " * 10
        if not post(port, {"prompt": prompt, "max_tokens": 1}):
            return


def answer(port: int) -> None:
    """An answer that ends with the server, and not before."""
    post(
        port,
        {"prompt": "Once upon a time", "max_tokens": 7000, "ignore_eos": True},
    )


def post(port: int, body: dict[str, Any]) -> bool:
    """False once the server was ended under it, as it is meant to be."""
    request = urllib.request.Request(
        f"http://{HOST}:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        urllib.request.urlopen(request, timeout=300).close()
    except (OSError, http.client.HTTPException):
        return False
    return True


if __name__ == "__main__":
    main()
