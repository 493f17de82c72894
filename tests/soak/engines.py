"""A thousand bad moments for an agent and its engines, and what must hold after them.

    python -m tests.soak.engines [--events 1000] [--engines 12] [--seed N]

As root it runs in namespaces of its own, where numbers can be made to come again and
the state lies on a small disk that can be filled. The clock jumps where libfaketime is
installed; engines run out of memory where there is a memory controller, old or new.
What a machine lacks is said and left out.

What must hold: what runs is what is wanted, nothing was signalled that was not ours,
no replica ran twice at once, nothing was left behind, no zombie, descriptors flat.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from llmgw.supervisor import procfs
from llmgw.supervisor.ledger import tagged
from tests.soak.machine import Memory, Writes, faketime, signalled

AGENT = """
import json, os, sys, anyio
from pathlib import Path
from llmgw.config import keys
from llmgw.errors import EngineError
from llmgw.supervisor.supervisor import Supervisor
from tests.supervisor.conftest import order

folder = Path(sys.argv[1])
settings = keys.Supervisor(
    backend="process", port_range="30000-30999", port_quarantine=0.0,
    restart_base=0.05, restart_max=0.2, stop_grace=1.0, health_interval=1.0,
)

def apply(supervisor, wanted):
    running = {s.id: s for s in supervisor.statuses()}
    for id, status in running.items():
        if id not in wanted or wanted[id] != status.spec_digest:
            supervisor.unwant(id)
    for id, digest in wanted.items():
        argv = ("/bin/sh", str(folder / "engine"), id, digest)
        try:
            supervisor.want(order(id, argv=argv, digest=digest, health=None))
        except EngineError:
            pass  # it is still being stopped

async def main():
    supervisor = Supervisor(settings, folder / "state")
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        (folder / "up").write_text(str(os.getpid()))
        while True:
            apply(supervisor, json.loads((folder / "wanted").read_text()))
            if (folder / "tell").exists():
                (folder / "tell").unlink()
                lines = [f"{s.id} {s.state} {s.reason}" for s in supervisor.statuses()]
                (folder / "told").write_text("\\n".join(lines))
            await anyio.sleep(0.02)

anyio.run(main)
"""
# The lock goes to what it starts: the next of its name sees whatever is left of it.
# flock says 1 where it is held; it may be killed itself, and says something else.
ENGINE = """
exec 9>> "$(dirname "$0")/lock-$1"
flock -n 9; [ $? != 1 ] || echo "$1 $2" >> "$(dirname "$0")/twice"
case $2 in *child) (setsid sleep 1000 < /dev/null &) ;; esac
echo "$1 $2" >> "$(dirname "$0")/starts"
case $2 in *hungry) exec "$PYTHON" -I -S "$(dirname "$0")/hungry" 1000 ;; esac
exec sleep 1000
"""
# Takes more than it is given as soon as it is told to.
HUNGRY = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.sigwait({signal.SIGUSR1})
held = [bytearray(b"x" * (1 << 20)) for _ in range(256)]
signal.pause()
"""
SMALL_DISK = "size=1m"


class Soak:
    def __init__(self, folder: Path, engines: int, dice: random.Random) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.ids = [f"s-{number}" for number in range(engines)]
        self.dice = dice
        self.wanted: dict[str, str] = {}
        self.revision = 0
        self.agent: subprocess.Popen[bytes] | None = None
        self.strangers: list[subprocess.Popen[bytes]] = []
        self.memory = Memory()
        self.has_own_disk = self._mount()
        self.clock = faketime()
        self.problems: list[str] = []
        self.happened: Counter[str] = Counter()
        (folder / "engine").write_text(ENGINE.replace("$PYTHON", sys.executable))
        (folder / "hungry").write_text(HUNGRY)
        (folder / "clock").write_text("+0")
        (folder / "twice").touch()
        for _ in range(5):
            self._stranger()
        for id in self.ids:
            self._wish(id)
        self._write()
        self.start()
        self.check()  # from now on there is something to lose
        self.descriptors = self._descriptors()

    # What can happen ----------------------------------------------------------------

    def step(self) -> None:
        name, event = self.dice.choice(
            [
                ("engine killed", self.kill_engine),
                ("engine killed", self.kill_engine),
                ("engine killed", self.kill_engine),
                ("agent killed", self.kill_agent),
                ("replica replaced", self.replace),
                ("replica removed or wanted", self.toggle),
                ("snapshot repeated", self._write),
                ("stale snapshot, then the right one", self.stale),
                ("agent paused", self.pause),
                ("engine out of memory", self.starve),
                ("agent killed as it writes", self.kill_writing),
                ("a line cannot be written for a moment", self.block),
                ("disk full for a moment", self.full),
                ("disk full, and the agent killed", self.full_and_killed),
                ("clock jumped", self.jump),
                ("line destroyed while away", self.destroy),
                ("number given to a stranger", self.reuse),
            ]
        )
        if event() is None:
            self.happened[name] += 1
        self.wait(self.dice.random() * 0.05)
        self.reap()

    def kill_engine(self) -> None:
        running = self.running()
        if running:
            _kill(self.dice.choice(running).pid)

    def kill_agent(self) -> None:
        assert self.agent
        self.wait(self.dice.random() * 0.03)
        self.agent.kill()
        self.agent.wait()
        self.start()

    def replace(self) -> None:
        self._wish(self.dice.choice(self.ids))
        self._write()

    def toggle(self) -> None:
        id = self.dice.choice(self.ids)
        if self.wanted.pop(id, None) is None:
            self._wish(id)
        self._write()

    def stale(self) -> None:
        now = dict(self.wanted)
        self._wish(self.dice.choice(self.ids))
        self._write()
        self.wait(self.dice.random() * 0.04)
        self.wanted = now
        self._write()

    def pause(self) -> None:
        assert self.agent
        self.agent.send_signal(signal.SIGSTOP)
        self.wait(self.dice.random() * 0.1)
        self.kill_engine()
        self.agent.send_signal(signal.SIGCONT)

    def starve(self) -> bool | None:
        """A real one: it is given little memory and takes much."""
        hungry = [
            stat.pid
            for stat in self.running()
            if procfs.argv(stat.pid)[-2:] == (str(self.folder / "hungry"), "1000")
        ]
        if not hungry:
            return False
        pid = self.dice.choice(hungry)
        if self.memory.path is None:
            _kill(pid)
            self.happened["and killed by us: no memory controller here"] += 1
            return None
        before = self.memory.killed()
        try:
            self.memory.take(pid)
            os.kill(pid, signal.SIGUSR1)
        except ProcessLookupError:
            return False
        end = time.monotonic() + 2
        while self.memory.killed() == before and time.monotonic() < end:
            self.wait(0.01)
        self.happened["and the kernel killed it"] += self.memory.killed() > before
        return None

    def kill_writing(self) -> bool | None:
        """At one of the moments at which its files change."""
        assert self.agent
        self._until_up()
        runs = [self.state / "run" / id for id in self.ids]
        writes = Writes([self.state / "ledger", *runs])
        self.dice.choice((self.kill_engine, self.replace, self.toggle))()
        hit = writes.wait(self.dice.randrange(1, 6), 1.0)
        self.agent.kill()
        self.agent.wait()
        writes.close()
        self.happened["and it was within a write"] += hit
        self.start()

    def full(self) -> bool | None:
        if not self.has_own_disk:
            return False
        filler = self._filled()
        self.dice.choice((self.kill_engine, self.replace))()
        self.wait(self.dice.random() * 0.3)
        filler.unlink()
        return None

    def full_and_killed(self) -> bool | None:
        assert self.agent
        if not self.has_own_disk:
            return False
        filler = self._filled()
        self.kill_engine()
        self.wait(self.dice.random() * 0.05)
        self.agent.kill()
        self.agent.wait()
        self.start()
        self.wait(self.dice.random() * 0.1)
        filler.unlink()
        return None

    def _filled(self) -> Path:
        filler = self.state / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 1024)
            except OSError:
                return filler

    def jump(self) -> bool | None:
        """The wall clock of the agent, by up to ten years, either way."""
        if not self.clock:
            return False
        part = self.folder / "clock.part"
        part.write_text(f"{self.dice.randrange(-300_000_000, 300_000_000):+d}")
        part.rename(self.folder / "clock")
        return None

    def block(self) -> None:
        """A folder where the new line is to be written: no write gets through."""
        id = self.dice.choice(self.ids)
        block = self.state / "ledger" / f".{id}.json.part"
        try:
            block.mkdir()
        except FileExistsError:
            return
        self.kill_engine()
        self.wait(0.1)
        block.rmdir()

    def destroy(self) -> None:
        assert self.agent
        self.agent.kill()
        self.agent.wait()
        lines = sorted((self.state / "ledger").glob("*.json"))
        if lines:
            line = self.dice.choice(lines)
            line.write_bytes(line.read_bytes()[: self.dice.randrange(40)])
        self.start()

    def reuse(self) -> None:
        """An engine dies unseen, and its number goes to somebody else."""
        assert self.agent
        running = [s for s in self.running() if s.session == s.pid]
        if os.getpid() != 1 or not running or len(self.strangers) > 30:
            return
        self.agent.kill()
        self.agent.wait()
        victim = self.dice.choice(running).pid
        _kill(victim)
        self.wait(0.02)
        self.reap()
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(victim - 1))
        self.happened["and it was given the very same"] += self._stranger() == victim
        self.start()

    def _stranger(self) -> int:
        """Blocks every signal, so that what it is sent can be seen to pend."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        stranger = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.strangers.append(stranger)
        return stranger.pid

    # What must hold -----------------------------------------------------------------

    def check(self) -> None:
        """What must hold at any time, once the agent has had time to put it right."""
        end = time.monotonic() + 60
        while (off := self._off()) and time.monotonic() < end:
            self.wait(0.1)
            self.reap()
        if off:
            self.problems.append(f"what runs is not what is wanted: {off}")
            say(self._told())
        twice = (self.folder / "twice").read_text()
        if twice:
            self.problems.append(f"ran twice at once: {twice.split()}")
        for stranger in list(self.strangers):
            if got := signalled(stranger):
                self.problems.append(f"stranger {stranger.pid}: {got}")
                self.strangers.remove(stranger)

    def faults(self) -> list[str]:
        assert self.agent
        self.check()
        found = self.problems
        self.wait(5)
        self.reap()
        zombies = [s.pid for s in procfs.everyone() if self._is_our_zombie(s)]
        if zombies:
            found.append(f"zombies: {zombies}")
        if (now := self._descriptors()) > self.descriptors + 5:
            found.append(f"descriptors went from {self.descriptors} to {now}")
        return found

    def _is_our_zombie(self, stat: procfs.Stat) -> bool:
        assert self.agent
        return stat.state == "Z" and stat.parent in (self.agent.pid, os.getpid())

    def _off(self) -> str:
        """In which way the processes are not those wanted; "" when they are."""
        heads: dict[str, list[str]] = {}
        for id, stats in tagged(self._tag()).items():
            for stat in stats:
                argv = procfs.argv(stat.pid)
                if stat.session == stat.pid and len(argv) > 1 and argv[-1] == "1000":
                    heads.setdefault(id, []).append(str(stat.pid))
        extra = {id: pids for id, pids in heads.items() if id not in self.wanted}
        missing = self.wanted.keys() - heads.keys()
        lines = {p.stem for p in (self.state / "ledger").glob("*.json")}
        if extra or missing or lines != self.wanted.keys():
            return f"extra {extra}, missing {missing}, lines {sorted(lines)}"
        return ""

    def _told(self) -> str:
        """What the agent has to say of them, and what it said last."""
        (self.folder / "tell").touch()
        self.wait(1)
        told = self.folder / "told"
        text = told.read_text() if told.exists() else "the agent does not answer"
        return f"{text}\n{(self.folder / 'agent.log').read_text()[-4000:]}"

    # Small things -------------------------------------------------------------------

    def start(self) -> None:
        (self.folder / "up").unlink(missing_ok=True)
        clock = {
            "LD_PRELOAD": self.clock,
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock"),
            "FAKETIME_NO_CACHE": "1",
            # As with a real clock that is set: the one for durations goes on.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(self.folder)],
            env={**os.environ, **(clock if self.clock else {})},
            stderr=(self.folder / "agent.log").open("ab"),
        )
        if self.dice.random() < 0.3:
            return  # the next event meets it while it starts
        self._until_up()

    def _until_up(self) -> None:
        assert self.agent
        while not (self.folder / "up").exists():
            if self.agent.poll() is not None:
                raise RuntimeError((self.folder / "agent.log").read_text()[-3000:])
            self.wait(0.01)

    def running(self) -> list[procfs.Stat]:
        return [s for stats in tagged(self._tag()).values() for s in stats]

    def reap(self) -> None:
        """As PID 1 of the namespace: what a killed agent's engines leave is ours."""
        ours = {self.agent.pid if self.agent else 0, *(s.pid for s in self.strangers)}
        for stat in list(procfs.everyone()):
            if (
                stat.parent == os.getpid()
                and stat.state == "Z"
                and stat.pid not in ours
            ):
                os.waitpid(stat.pid, os.WNOHANG)

    def wait(self, seconds: float) -> None:
        signal.sigtimedwait([], seconds)

    def end(self) -> None:
        if self.agent:
            self.agent.kill()
            self.agent.wait()
        for stat in self.running():
            _kill(stat.pid)
        for stranger in self.strangers:
            stranger.kill()
            stranger.wait()
        self.wait(0.5)
        self.reap()
        self.memory.remove()
        if self.has_own_disk:
            subprocess.run(["umount", "--lazy", str(self.state)], check=False)

    def _mount(self) -> bool:
        """The state on a disk of its own, where nobody else sees it."""
        self.state.mkdir()
        if os.getpid() != 1:
            return False
        mount = ["mount", "-t", "tmpfs", "-o", SMALL_DISK, "soak", str(self.state)]
        return subprocess.run(mount, check=False).returncode == 0

    def lacks(self) -> list[str]:
        lacks = [
            "clock jumps: install libfaketime (apt install faketime)"
            if not self.clock
            else "",
            "out of memory: a kill stands for it, no memory controller is writable"
            if self.memory.path is None
            else "",
            "full disks and numbers used again: run as root, with unshare"
            if not self.has_own_disk
            else "",
        ]
        return [lack for lack in lacks if lack]

    def _wish(self, id: str) -> None:
        self.revision += 1
        kind = self.dice.choice(("plain", "child", "hungry"))
        self.wanted[id] = f"d{self.revision}-{kind}"

    def _write(self) -> None:
        part = self.folder / "wanted.part"
        part.write_text(json.dumps(self.wanted))
        part.rename(self.folder / "wanted")

    def _tag(self) -> str:
        path = self.state / "ledger-tag"
        return path.read_text() if path.exists() else "none yet"

    def _descriptors(self) -> int:
        assert self.agent
        return len(list(Path(f"/proc/{self.agent.pid}/fd").iterdir()))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="a thousand bad moments")
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--engines", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    if os.geteuid() == 0 and os.getpid() != 1 and shutil.which("unshare"):
        own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        here = [sys.executable, "-m", "tests.soak.engines", f"--seed={options.seed}"]
        counts = [f"--events={options.events}", f"--engines={options.engines}"]
        return subprocess.run([*own, *here, *counts], check=False).returncode
    say(f"seed {options.seed}, {options.events} events, {options.engines} engines")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        soak = Soak(Path(name), options.engines, random.Random(options.seed))
        for lack in soak.lacks():
            say(f"left out: {lack}")
        begun = time.monotonic()
        try:
            for number in range(options.events):
                soak.step()
                if number % 100 == 99:
                    soak.check()
                    say(f"{number + 1} events, {time.monotonic() - begun:.0f} s")
            if not (soak.folder / "up").exists():
                soak.wait(2)
            faults = soak.faults()
            starts = len((soak.folder / "starts").read_text().splitlines())
        finally:
            soak.end()
    for what, count in sorted(soak.happened.items()):
        say(f"{count:6} {what}")
    say(f"{starts:6} engine starts")
    for fault in faults:
        say(f"FAULT: {fault}")
    say("all invariants hold" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
