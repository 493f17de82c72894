"""Random faults for as long as asked: `python -m tests.soak.link --minutes 60`.

Three control planes that die, come back, hang, lie, flap and take the lead from each
other; one node with a real process beside it that stands for its engines and is
signalled by whoever would stop `a`. At the end: sessions were always opened again, the
epoch on disk never fell, nothing was signalled, memory and descriptors are flat.
"""

import argparse
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import psutil

from llmgw.config import keys
from llmgw.session.kept import NAME, Kept
from llmgw.session.link import Link
from llmgw.session.node import Identity
from tests.fakes.control_plane import (
    ControlPlane,
    Handler,
    close,
    drip,
    hang,
    raw,
    refuse,
    reset,
)
from tests.fakes.node import FakeNode

A = {"id": "a", "generation": 1, "engine": "command"}
BEAT = 0.3
# Longer than this without a session while a leader is there is a failure: the lease of
# three beats, the longest back-off, a dial that runs into its limit, and room.
WITHIN = 15.0
LIES = (
    b'{"t":"snapshot","epoch":999999,"rev":1,"complete":true,"replicas":[',
    b'{"t":"snapshot","epoch":999999,"rev":1,"complete":false,"replicas":[]}\n',
    b'{"t":"snapshot","epoch":0,"rev":1,"complete":true,"replicas":[]}\n',
    b'{"t":"snapshot","rev":1}\n',
    b"\x00\xff\n",
    b"x" * 100_000,
)


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.epoch = 1
        self.planes = [ControlPlane(epoch=1, lease_s=1.0) for _ in range(3)]
        self.folder = folder
        self.node = FakeNode()
        self.node.runs("a")
        self.faults: Counter[str] = Counter()
        self.broken: list[str] = []
        self.history: deque[str] = deque(maxlen=3)
        self.slowest = 0.0
        for one in self.planes:
            one.replicas = [A]
            one.max_line = 65536
            one.standby = True

    async def run(self, seconds: float) -> None:
        engine = os.posix_spawn("/bin/sleep", ["sleep", "1000000"], {})
        try:
            async with anyio.create_task_group() as group:
                self.group = group
                for one in self.planes:
                    await group.start(one.run)
                self.planes[0].standby = False
                self.link = Link(
                    Identity(node_id="n1", version="soak"),
                    tuple(one.url for one in self.planes),
                    None,
                    keys.Link(fail_back_interval=2.0, dial_timeout=1.0),
                    self.node,
                    self.folder,
                    heartbeat=BEAT,
                    reconnect_base=0.1,
                    reconnect_max=2.0,
                )
                group.start_soon(self.link.run)
                group.start_soon(self.reconcile, engine)
                group.start_soon(self.chatter)
                await self.storm(seconds)
                group.cancel_scope.cancel()
            alive = psutil.Process(engine).status()
            if alive not in ("sleeping", "running"):
                self.broken.append(f"the engine was signalled: it is {alive}")
        finally:
            os.kill(engine, signal.SIGKILL)
            os.waitpid(engine, 0)

    async def reconcile(self, engine: int) -> None:
        """What an agent would do: stop what a snapshot does not want any more."""
        number = -1
        while True:
            number, desired = await self.link.desired.newer_than(number)
            if desired is None or desired.kept:
                continue
            if "a" not in [item.replica.id for item in desired.wanted]:
                self.broken.append(f"rev {desired.rev} of {desired.epoch} wants no `a`")
                os.kill(engine, signal.SIGTERM)

    async def chatter(self) -> None:
        while True:
            await anyio.sleep(0.2)
            self.link.events.add("soak", "something happened", replica="a")
            self.node.runs("a", state=self.dice.choice(["ready", "busy", "unhealthy"]))

    async def storm(self, seconds: float) -> None:
        began = said = time.monotonic()
        me = psutil.Process()
        files = memory = blocks = 0
        before = 0
        while (now := time.monotonic()) - began < seconds:
            await self.fault()
            await self.well_again()
            before = await self.epoch_on_disk(before)
            if not files and now - began > seconds / 5:
                files, memory = me.num_fds(), me.memory_info().rss
                blocks = in_use()
            if now - said >= 60:
                said = now
                self.say(now - began, me)
        if self.broken:
            return
        grown = me.memory_info().rss - memory
        # What is in use. The other is also what the allocator keeps for later, in
        # pieces: that grows for hours, ever slower.
        held = in_use() - blocks
        await anyio.sleep(2)
        more = me.num_fds() - files
        self.say(time.monotonic() - began, me)
        say(
            f"since a fifth of it: memory {grown / 1024:+.0f} KiB, "
            f"objects {held:+d}, files {more:+d}"
        )
        if held > 10_000:
            self.broken.append(f"{held} more objects")
        if grown > 8 * 1024 * 1024:
            self.broken.append(f"memory grew by {grown} bytes")
        if more > 20:  # of a session and three listeners; a leak is one a fault
            self.broken.append(f"{more} more descriptors")

    def say(self, after: float, me: psutil.Process) -> None:
        status = self.link.status.value
        say(
            f"{after:.0f} s: {self.faults.total()} faults, {status.sessions} sessions, "
            f"slowest back {self.slowest:.1f} s, epoch {self.epoch}, "
            f"{me.memory_info().rss / 1e6:.1f} MB, {me.num_fds()} files"
        )

    async def fault(self) -> None:
        leader = next((one for one in self.planes if not one.standby), self.planes[0])
        kinds: dict[str, Callable[[ControlPlane], Awaitable[None]]] = {
            "dies": self.dies,
            "steps down": self.steps_down,
            "restarts": self.restarts,
            "lies": self.lies,
            "hangs": self.hangs,
            "rebuffs": self.rebuffs,
            "forgets": self.forgets,
            "cuts": self.cuts,
            "election": self.election,
            "all dead": self.all_dead,
            "two leaders": self.two_leaders,
        }
        kind = self.dice.choice(list(kinds))
        self.faults[kind] += 1
        self.history.append(kind)
        await kinds[kind](leader)

    async def dies(self, leader: ControlPlane) -> None:
        leader.die()
        leader.standby = True
        self.lead(self.other(leader))
        await anyio.sleep(self.dice.random())
        await self.back(leader)

    async def back(self, one: ControlPlane) -> None:
        # The node dials the closed port all the while, and the kernel may give that
        # very port to one of its own connections for a moment.
        with anyio.fail_after(WITHIN):
            while True:
                try:
                    return await self.group.start(one.run)
                except OSError:
                    await anyio.sleep(0.1)

    async def restarts(self, leader: ControlPlane) -> None:
        leader.die()
        leader.standby = True
        await anyio.sleep(self.dice.random() * 2)
        await self.back(leader)
        self.lead(leader)

    async def steps_down(self, leader: ControlPlane) -> None:
        leader.standby = True
        heir = self.other(leader)
        self.lead(heir)
        await self.push(
            leader, {"t": "bye", "reason": "not_leader", "leader": heir.url}
        )

    async def lies(self, leader: ControlPlane) -> None:
        await self.push(leader, self.dice.choice(LIES))

    async def hangs(self, leader: ControlPlane) -> None:
        kind = self.dice.choice(["register", "heartbeat", "desired", "events"])
        slow: list[Handler] = [hang, drip(b"HTTP/1.1 200 OK\r\n\r\n", 0.1)]
        leader.on[kind] = self.dice.choice(slow)
        heir = self.other(leader)
        await anyio.sleep(self.dice.random() * 2)
        leader.standby = True
        self.lead(heir)
        await anyio.sleep(self.dice.random())
        del leader.on[kind]

    async def rebuffs(self, leader: ControlPlane) -> None:
        kind = self.dice.choice(["register", "heartbeat", "desired", "facts", "events"])
        rebuff: list[Handler] = [
            close,
            reset,
            refuse(503, "busy", retry_after_s=0.5),
            refuse(409, "node_in_use"),
            refuse(500, "oops"),
            raw(b"HTTP/1.1 302 Found\r\nlocation: http://x/\r\n\r\n"),
            raw(b'HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"epoch":1'),
        ]
        leader.on[kind] = self.dice.choice(rebuff)
        await anyio.sleep(self.dice.random() * 2)
        del leader.on[kind]

    async def forgets(self, leader: ControlPlane) -> None:
        leader.forget()

    async def cuts(self, leader: ControlPlane) -> None:
        for stream in tuple(leader.streams):
            await stream.aclose()

    async def election(self, leader: ControlPlane) -> None:
        """For a while there are only standbys, and one that is dead."""
        leader.die()
        leader.standby = True
        await anyio.sleep(self.dice.random() * 3)
        self.lead(self.other(leader))
        await self.back(leader)

    async def all_dead(self, leader: ControlPlane) -> None:
        for one in self.planes:
            one.die()
        await anyio.sleep(self.dice.random() * 3)
        for one in self.planes:
            await self.back(one)
        self.lead(leader)

    async def two_leaders(self, leader: ControlPlane) -> None:
        """The old one has not noticed; the node is with either, and has to move."""
        self.lead(self.other(leader))
        for _ in range(2):
            await self.cuts(leader)
            await anyio.sleep(self.dice.random())
        leader.standby = True

    async def push(self, one: ControlPlane, line: dict[str, object] | bytes) -> None:
        with anyio.move_on_after(1):
            try:
                await one.push(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # it left just now

    def other(self, leader: ControlPlane) -> ControlPlane:
        return self.dice.choice([one for one in self.planes if one is not leader])

    def lead(self, heir: ControlPlane) -> None:
        self.epoch += 1
        heir.epoch, heir.standby = self.epoch, False
        heir.rev = self.epoch

    async def well_again(self) -> None:
        """With the one that leads, and heard by it, within the time there is."""
        began = time.monotonic()
        leader = next(one for one in self.planes if not one.standby)
        with anyio.move_on_after(WITHIN) as scope:
            beats = len(leader.heard("heartbeat"))
            await leader.hears("heartbeat", beats + 2)
        if scope.cancelled_caught:
            status = msgspec.json.encode(self.link.status.value).decode()
            last = self.history[-1]
            self.broken.append(f"no session {WITHIN} s after {last}: {status}")
            say(self.broken[-1])
        self.slowest = max(self.slowest, time.monotonic() - began)
        for one in self.planes:
            del one.requests[:]  # a day's worth of them would not be flat

    async def epoch_on_disk(self, before: int) -> int:
        content = await anyio.Path(self.folder / NAME).read_bytes()
        epoch = msgspec.json.decode(content, type=Kept).epoch
        if epoch < before:
            self.broken.append(f"the epoch on disk fell from {before} to {epoch}")
        return epoch


def in_use() -> int:
    """Of all objects, those that somebody holds."""
    gc.collect()
    return sys.getallocatedblocks()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(minutes: float, seed: int) -> int:
    logging.disable(logging.WARNING)  # each fault is told, and there are thousands
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), seed)
        await soak.run(minutes * 60)
    say("faults: " + ", ".join(f"{n} {kind}" for kind, n in soak.faults.most_common()))
    for line in soak.broken:
        say(f"BROKEN: {line}")
    if not soak.broken:
        say("sessions always opened again, no epoch fell, no engine signalled")
    return 1 if soak.broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    sys.exit(anyio.run(main, args.minutes, args.seed))
