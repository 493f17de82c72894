"""Kill -9 at any moment, again and again: `python -m tests.soak.weights [--kills 200]`

Each file is fetched by a process that is killed some times on its way, at moments
drawn by chance, and then left to end. Every file must be right, nothing unfinished
may remain, and what was sent twice is at most 5 % of the bytes (T69, T70).
"""

import argparse
import hashlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from llmgw.weights.order import Done, Failed
from llmgw.weights.parts import WORK
from tests.fakes.weights_server import WeightsServer
from tests.weights.process import FetchProcess

MIB = 1024 * 1024
SIZE = 48 * MIB
RATE = 64 * MIB


def fetch(cache: Path, url: str, digest: str, life: float | None) -> Done | None:
    """One process; killed after *life* seconds if it is not done by then."""
    with FetchProcess(cache) as process:
        process.ask(url, digest)
        if life is not None:
            killer = threading.Timer(life, process.kill)
            killer.start()
            ended = process.ended()
            killer.cancel()
            killer.join()
        else:
            ended = process.ended()
    if isinstance(ended, Failed):
        raise SystemExit(f"failed: {ended.what}")
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    kills = files = wanted = 0
    with tempfile.TemporaryDirectory() as folder, WeightsServer() as server:
        while kills < arguments.kills:
            content = dice.randbytes(SIZE)
            digest = hashlib.sha256(content).hexdigest()
            path = f"/model-{files}"
            server.put(path, content).rate = RATE / 8
            cache = Path(folder) / str(files)
            done: Done | None = None
            for _ in range(dice.randint(2, 6)):
                done = fetch(cache, server.url(path), digest, dice.uniform(0.1, 1.2))
                kills += done is None
            if done is None:
                done = fetch(cache, server.url(path), digest, None)
            assert done is not None
            found = Path(done.path).read_bytes()
            if found != content:
                raise SystemExit(f"seed {arguments.seed}: {path} is wrong")
            left = [p for p in (cache / WORK).glob("*/*") if p.is_file()]
            if left:
                raise SystemExit(f"seed {arguments.seed}: left behind {left}")
            files, wanted = files + 1, wanted + SIZE
            del server.files[path]
            sys.stdout.write(
                f"\r{kills} kills, {files} files right, "
                f"{100 * (server.sent() / wanted - 1):.2f} % sent twice "
            )
            sys.stdout.flush()
    twice = server.sent() / wanted - 1
    sys.stdout.write(f"\nseed {arguments.seed}\n")
    raise SystemExit(0 if twice <= 0.05 else f"{twice:.1%} was sent twice")


if __name__ == "__main__":
    main()
