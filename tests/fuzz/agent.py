"""An agent whose control plane wants nonsense: `python -m tests.fuzz.agent`.

Snapshots of random replicas and builds, several in a second. The agent may refuse each
of them; it may not end, nor touch the one engine that is wanted as it was all along.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmgw import engines
from tests.e2e.fleet import Fleet, alive
from tests.fakes.control_plane import ControlPlane

GOOD: dict[str, Any] = {"id": "good", "generation": 1, "engine": "command"}
WORDS = [
    *("", "a", "\0", "a\0b", "ü", "..", "../x", "/etc/passwd", "~", "$HOME", "\n", "="),
    *(
        "{port}",
        "{host",
        "{nope}",
        "{0}",
        "%",
        "-c",
        "a=b",
        "a" * 5000,
        "\u202e",
        "all",
    ),
    *(
        "hf://a/b",
        "hf://",
        "hf://o/n.git@main",
        "hf://a/b/../c",
        "hf://a/b@" + "x" * 300,
    ),
    *("http://[::1", "http://127.0.0.1:1/x", "https://x:99999/y", "http://a..b/m"),
    *("file:///%00", "file:///nope", "file://host/x", "s3://b/k", "tiny.gguf", "C:\\x"),
    *(
        "sha256:zz",
        "GPU-0",
        "fe80::1%lo",
        "[::1]",
        "127.0.0.1",
        "127.0.0.1:1",
        "h:99999",
    ),
]
INTEGERS = [0, -1, 1, 2, 3, 7, 80, 65535, 65536, 2**31, 2**53, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, -1.0, 1e-9, 0.5, 3.0, 1e18, 1e308]


class Nonsense:
    """What the wire's shapes allow, and nobody would mean."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def snapshot(self) -> dict[str, Any]:
        """What of one changes."""
        dice = self.dice
        return {
            "replicas": [GOOD, *(self.replica(n) for n in range(dice.randint(0, 12)))],
            "builds": [self.build() for _ in range(dice.randint(0, 2))],
            "drain": dice.random() < 0.1,
        }

    def replica(self, number: int) -> dict[str, Any]:
        integer, real = self._integer, self._real
        kinds = [*engines.ENGINES, "nope", ""]
        one = {
            "build": self._word(),
            "model": self.model(),
            "gpus": self._words(),
            "cpus": real(),
            "memory": integer(),
            "context": integer(),
            "parallel": integer(),
            "args": self._words(),
            "env": {word: self._word() for word in self._words()},
            "port": integer(),
            "group": self.group(),
            "restart": {
                "base_s": real(),
                "max_s": real(),
                "crash_loop_after": integer(),
            },
            "disconnect": {"stop_after": real()},
            "mmproj": self.model(),
            "lora": [{"source": self._word(), "scale": real()}],
            "replace": self.dice.choice(["stop_first", "start_first"]),
        }
        said = {key: value for key, value in one.items() if self.dice.random() < 0.3}
        return {
            "id": f"r{number}",
            "generation": self.dice.randint(1, 3),
            "engine": self.dice.choice(kinds),
            **said,
        }

    def model(self) -> dict[str, Any]:
        return {"name": self._word(), "source": self._word()}

    def group(self) -> dict[str, Any]:
        return {
            "id": self._word(),
            "rank": self._integer(),
            "size": self._integer(),
            "head": self._word(),
            "port": self._integer(),
            "members": self._words(),
        }

    def build(self) -> dict[str, Any]:
        return {
            "name": self._word(),
            "engine": self.dice.choice(list(engines.ENGINES)),
            "url": self._word(),
            "sha256": self.dice.choice(["0" * 64, self._word()]),
        }

    def _word(self) -> str:
        return self.dice.choice(WORDS)

    def _words(self) -> list[str]:
        return self.dice.choices(WORDS, k=self.dice.randint(0, 3))

    def _integer(self) -> int:
        return self.dice.choice(INTEGERS)

    def _real(self) -> float:
        return self.dice.choice(FLOATS + INTEGERS)


async def sent(fleet: Fleet, seed: int, seconds: float) -> str | None:
    """What went wrong."""
    plane, nonsense, states = ControlPlane(), Nonsense(seed), Counter[str]()
    plane.replicas = [GOOD]
    look, wrong = anyio.to_thread.run_sync, None
    async with anyio.create_task_group() as group:
        await group.start(plane.run)
        fleet.write(plane.url, supervisor=fleet.engine_file())
        agent = fleet.agent()
        pid = (await look(fleet.replica, "ready", "good"))["pid"]
        end = time.monotonic() + seconds
        while wrong is None and time.monotonic() < end:
            plane.rev += 1
            changed = nonsense.snapshot()
            snapshot = msgspec.json.encode(plane.snapshot(**changed))
            with anyio.move_on_after(10):  # one that ended listens no more
                await plane.push(snapshot + b"\n")
            await anyio.sleep(nonsense.dice.choice([0.05, 0.3, 1.0]))
            if not alive(agent.pid):
                wrong = f"the agent ended\n{agent.said[-3000:]}\n{snapshot.decode()}"
            elif not alive(pid):
                wrong = f"the engine that was wanted ended\n{snapshot.decode()}"
            elif status := await look(fleet.status):
                states.update(one["state"] for one in status["replicas"])
        group.cancel_scope.cancel()
    sys.stdout.write(f"snapshots: {plane.rev - 1}; replicas seen: {dict(states)}\n")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    args = parser.parse_args()
    sys.stdout.write(f"seed {args.seed}\n")
    # `timeout` ends it so: what it started is to end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        try:
            wrong = anyio.run(sent, fleet, args.seed, args.seconds)
        finally:
            fleet.end()
    sys.stdout.write(f"{wrong or 'held'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
