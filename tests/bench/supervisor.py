"""Keeping processes, beside supervisord, circus and runit, in one run.

    python -m tests.bench.supervisor [--children 64] [--crashes 15]

Peers are used where they are found: `supervisord`, `circusd` (on PATH or in
$LLMGW_BENCH_PEERS, a folder of programs) and `runsvdir`. All run the same children.
What is compared is a ratio within this run: the machine's own speed is in none of it.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from llmgw.supervisor import procfs
from llmgw.supervisor.cgroup import Cgroup

COLD = "cold start to first child ms"
OURS = """
import sys, time, anyio
from pathlib import Path
from llmgw.config import keys
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.order import Order
from llmgw.supervisor.supervisor import Supervisor

folder, count, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def order(id, *argv):
    async def prepare(ports, report):
        return Launch(argv=argv, ports=dict(ports))
    return Order(id=id, generation=1, digest="d1", prepare=prepare)

async def said(supervisor, id):
    while not (text := supervisor.log_path(id).read_text().strip()):
        await anyio.sleep(0.002)
    return int(text)

async def executed(supervisor):
    # The engine says on its first line what time it is; date itself takes 1 ms of it.
    took = []
    for number in range(20):
        begun = time.time_ns()
        supervisor.want(order(f"t-{number}", "/bin/date", "+%s%N"))
        while not supervisor.log_path(f"t-{number}").exists():
            await anyio.sleep(0.002)
        took.append((await said(supervisor, f"t-{number}") - begun) / 1e6)
        supervisor.unwant(f"t-{number}")
        await anyio.sleep(0.1)
    (folder / "executed").write_text(" ".join(map(str, took)))

async def main():
    settings = keys.Supervisor(backend="process", port_range="30000-30999")
    supervisor = Supervisor(settings, folder / "state")
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        for number in range(count):
            child = ("/bin/sh", str(folder / "child"), str(number))
            supervisor.want(order(f"c-{number}", *child))
        if kind == "timed":
            await executed(supervisor)
        await anyio.sleep_forever()

anyio.run(main)
"""
CHILD = """
cd "$(dirname "$0")" || exit
echo $$ > "pid-$1.new"
mv "pid-$1.new" "pid-$1"
exec sleep 1000
"""

NEW_PID_MS = 10.0
EXECUTED_MS = 20.0
EXECUTED = "order to exec ms"


class Keeper(NamedTuple):
    """*leave*: the signal at which it stops its children and goes."""

    name: str
    argv: Callable[[Path, int], list[str]]
    leave: signal.Signals = signal.SIGTERM


def ours(folder: Path, count: int) -> list[str]:
    # Only in an agent with nothing else to do: its memory and CPU are measured besides.
    kind = "timed" if count == 0 else "plain"
    return [sys.executable, "-c", OURS, str(folder), str(count), kind]


def ours_delegated(folder: Path, count: int) -> list[str]:
    """In a cgroup that is ours to divide, as its unit gives it to the agent."""
    mount = procfs.cgroup_mount()
    assert mount, "left out where there is none"
    given = mount / f"llmgw-bench-{os.getpid()}"
    given.mkdir(exist_ok=True)
    os.setxattr(given, "trusted.delegate", b"1")
    join = f'echo $$ > {given}/cgroup.procs && exec "$@"'
    return ["/bin/sh", "-c", join, "sh", *ours(folder, count)]


def supervisord(folder: Path, count: int) -> list[str]:
    programs = "".join(
        f"[program:c{n}]\ncommand=/bin/sh {folder}/child {n}\nstartsecs=0\n"
        for n in range(count)
    )
    (folder / "supervisord.conf").write_text(
        f"[supervisord]\nnodaemon=true\nlogfile={folder}/log\npidfile={folder}/pid\n"
        f"childlogdir={folder}\n{programs}"
    )
    return [_peer("supervisord"), "-c", str(folder / "supervisord.conf")]


def circus(folder: Path, count: int) -> list[str]:
    watchers = "".join(
        f"[watcher:c{n}]\ncmd = /bin/sh {folder}/child {n}\nmax_retry = -1\n"
        for n in range(count)
    )
    (folder / "circus.ini").write_text(
        "[circus]\ncheck_delay = 1\n"
        f"endpoint = ipc://{folder}/a\npubsub_endpoint = ipc://{folder}/b\n{watchers}"
    )
    return [_peer("circusd"), str(folder / "circus.ini")]


def runit(folder: Path, count: int) -> list[str]:
    for number in range(count):
        service = folder / "sv" / f"c{number}"
        service.mkdir(parents=True)
        run = service / "run"
        run.write_text(f"#!/bin/sh\nexec /bin/sh {folder}/child {number}\n")
        run.chmod(0o755)
    return [_peer("runsvdir"), str(folder / "sv")]


def _peer(name: str) -> str:
    folder = os.environ.get("LLMGW_BENCH_PEERS", "")
    path = os.pathsep.join(p for p in (folder, os.environ["PATH"]) if p)
    return shutil.which(name, path=path) or ""


def pid_of(folder: Path, number: int = 0) -> int:
    try:
        return int((folder / f"pid-{number}").read_text())
    except (OSError, ValueError):
        return 0


def wait_until(true: Callable[[], bool], within: float = 60.0) -> float:
    """Seconds that it took."""
    begun = time.perf_counter()
    while not true():
        if time.perf_counter() - begun > within:
            raise TimeoutError
        os.sched_yield()
    return time.perf_counter() - begun


def children(pid: int) -> set[int]:
    """Of all its threads, and of its children: runit has one keeper a service."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found |= {int(c) for c in (task / "children").read_text().split()}
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def family(pid: int) -> set[int]:
    """The keeper and those of its children that keep too."""
    return {pid} | {c for c in children(pid) if _name(c) == "runsv"}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def resident(pid: int) -> float:
    """MiB, proportionally where pages are shared."""
    total = 0
    for one in family(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu(pid: int) -> float:
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


def measure(keeper: Keeper, count: int, crashes: int, idle: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "child").write_text(CHILD)
        argv = keeper.argv(folder, count)
        with subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path.cwd()
        ) as process:
            try:
                first = wait_until(lambda: pid_of(folder) > 0)
                wait_until(lambda: all(pid_of(folder, n) for n in range(count)))
                seen: list[float] = []
                running: list[float] = []
                for number in range(crashes):
                    # Keepers forgive more when the child has run for a moment.
                    signal.sigtimedwait([], 1.2)
                    one, two = _crash(folder, number % count)
                    seen.append(one)
                    running.append(two)
                signal.sigtimedwait([], 3)
                before = cpu(process.pid)
                signal.sigtimedwait([], idle)
                return {
                    COLD: first * 1000,
                    **_medians(seen, running),
                    f"PSS with {count} MiB": resident(process.pid),
                    f"idle CPU with {count} %": (cpu(process.pid) - before)
                    / idle
                    * 100,
                }
            finally:
                _end(process, keeper.leave, folder, count)


def _crash(folder: Path, number: int) -> tuple[float, float]:
    old = pid_of(folder, number)
    keeper = parent(old)
    others = children(keeper)
    assert old in others, "a child is started by its keeper"
    begun = time.perf_counter()
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: bool(children(keeper) - others))
    seen = time.perf_counter() - begun
    wait_until(lambda: pid_of(folder, number) != old)
    return seen, time.perf_counter() - begun


def executed(keeper: Keeper) -> float:
    """Median of some orders, each of a program that says when it runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        said = folder / "executed"
        with subprocess.Popen(
            keeper.argv(folder, 0), stderr=subprocess.DEVNULL, cwd=Path.cwd()
        ) as process:
            try:
                wait_until(lambda: said.exists() and bool(said.read_text()))
                return statistics.median(map(float, said.read_text().split()))
            finally:
                _end(process, keeper.leave, folder, 0)


def _end(
    process: subprocess.Popen[bytes], leave: signal.Signals, folder: Path, count: int
) -> None:
    keepers = family(process.pid) - {process.pid}
    process.send_signal(leave)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
    wait_until(lambda: not any(_name(pid) == "runsv" for pid in keepers))
    for number in range(count):
        pid = pid_of(folder, number)
        if pid and _name(pid) == "sleep":
            os.kill(pid, signal.SIGKILL)
    if mount := procfs.cgroup_mount():
        signal.sigtimedwait([], 0.3)
        Cgroup(mount / f"llmgw-bench-{os.getpid()}").remove()


def _rounded(result: dict[str, float]) -> dict[str, float]:
    return {what: round(value, 2) for what, value in result.items()}


def _medians(seen: list[float], running: list[float]) -> dict[str, float]:
    if not seen:
        return {}
    return {
        "crash to new pid ms": statistics.median(seen) * 1000,
        "crash to new child running ms": statistics.median(running) * 1000,
    }


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="keeping processes, beside its peers")
    parser.add_argument("--children", type=int, default=64)
    parser.add_argument("--crashes", type=int, default=9)
    parser.add_argument("--only", help="these, by name, with a comma between")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds")
    options = parser.parse_args()
    keepers = [
        Keeper("llmgw", ours_delegated),
        Keeper("llmgw no cgroup", ours),
        Keeper("supervisord", supervisord),
        Keeper("circus", circus),
        # At SIGTERM it leaves its runsv behind, and they their children.
        Keeper("runit", runit, signal.SIGHUP),
    ]
    programs = {"supervisord": "supervisord", "circus": "circusd", "runit": "runsvdir"}
    results: dict[str, dict[str, float]] = {}
    if os.geteuid() != 0 or procfs.cgroup_mount() is None:
        say("llmgw is measured without cgroups: run as root with cgroup2 mounted")
        keepers = [Keeper("llmgw", ours), *keepers[2:]]
    for keeper in keepers:
        if options.only and keeper.name not in options.only.split(","):
            continue
        if keeper.name in programs and not _peer(programs[keeper.name]):
            say(f"{keeper.name}: not installed, left out")
            continue
        few = measure(keeper, 1, 0, options.idle)
        # Each child crashes once: a second crash soon after waits, as it should.
        many = measure(keeper, options.children, options.crashes, options.idle)
        timed = (
            {EXECUTED: executed(keeper)}
            if keeper.argv in (ours, ours_delegated)
            else {}
        )
        results[keeper.name] = {**many, **few, **timed}
        say(f"{keeper.name}: {json.dumps(_rounded(results[keeper.name]))}")
    names = list(results)
    say(f"\n{'':32}" + "".join(f"{name:>16}" for name in names))
    for what in results["llmgw"]:
        row = "".join(f"{results[name].get(what, 0):16.2f}" for name in names)
        say(f"{what:32}{row}")
    new_pid = results["llmgw"]["crash to new pid ms"]
    order = results["llmgw"][EXECUTED]
    say(f"\nbudget: crash to new pid {new_pid:.2f} ms, at most {NEW_PID_MS:.2f}")
    say(f"budget: order to exec {order:.2f} ms, at most {EXECUTED_MS:.2f}")
    return 0 if new_pid <= NEW_PID_MS and order <= EXECUTED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
