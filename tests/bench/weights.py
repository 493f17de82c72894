"""How fast weights come, beside what people use: `python -m tests.bench.weights`

One loopback server, one file, one run. Each client fetches it into memory-backed
storage, from near and from 20 ms away: the connection and each answer then wait for so
long, and a connection carries no more in a round trip than this system lets a sender
have on the way (`net.ipv4.tcp_wmem`; there is no slow start). Ours includes SHA-256 and
the sync; the others write and do not look. What a client needs
before its first byte is in its figure, and told by itself as well: the time of the
same command for a file of one byte. Each measurement is told on standard error as it
is made; `--clients llmgw,curl` measures those alone. What is told at the end is the
median; a first fetch is not counted: the memory that it is the first to touch may come
slowly.
"""

import argparse
import contextlib
import hashlib
import http.server
import importlib.util
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

MIB = 1024 * 1024
NAME = "/bench/model/resolve/main/model.gguf"
# What huggingface_hub asks a hub once a day, beside the file.
KNOWN = {"/api/agent-harnesses": b'{"standardEnvVars": [], "harnesses": {}}'}


class _Handler(http.server.BaseHTTPRequestHandler):
    """Sends the file by sendfile: the server must not be what is measured."""

    protocol_version = "HTTP/1.1"
    file: Path
    sha256: str
    delay: float
    window: int

    def log_message(self, format: str, *args: object) -> None:
        pass

    def setup(self) -> None:
        # A connection costs a round trip before the first request does.
        time_out(self.delay)
        super().setup()

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        time_out(self.delay)
        path = self.path.partition("?")[0]
        if path != NAME:
            self._aside(KNOWN.get(path), body=body)
            return
        size = self.file.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, size
        if found:
            start = int(found[1])
            end = min(int(found[2]) + 1, size) if found[2] else size
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("ETag", f'"{self.sha256}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if not body:
            return
        self.wfile.flush()
        with self.file.open("rb") as file, contextlib.suppress(OSError):
            while start < end:
                began, most = time.monotonic(), min(end, start + self.window)
                while start < most:
                    start += os.sendfile(
                        self.connection.fileno(), file.fileno(), start, most - start
                    )
                if start < end:
                    time_out(began + self.delay - time.monotonic())

    def _aside(self, content: bytes | None, *, body: bool) -> None:
        """What is not the file, and never its bytes: no client could read those."""
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if body and content:
            self.wfile.write(content)


def time_out(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


def serve(file: Path, sha256: str, delay: float) -> None:
    class Handler(_Handler):
        pass

    Handler.file, Handler.sha256, Handler.delay = file, sha256, delay
    Handler.window = window() if delay else file.stat().st_size
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


def window() -> int:
    """Bytes that a sender may have on the way in one connection."""
    return int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])


@contextlib.contextmanager
def serving(file: Path, sha256: str, delay: float) -> Generator[str]:
    command = [sys.executable, "-m", "tests.bench.weights", "--serve"]
    command += [str(file), sha256, str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


def clients(base: str, sha256: str, to: Path) -> dict[str, list[str]]:
    """The command of each client that is installed here."""
    url = base + NAME
    hub = (
        "import sys; from huggingface_hub import hf_hub_download as get;"
        "get('bench/model', 'model.gguf', local_dir=sys.argv[1])"
    )
    found = {
        "llmgw": [
            *(sys.executable, "-m", "llmgw", "pull", url),
            *("--digest", sha256, "--to", str(to), "--json"),
        ]
    }
    if shutil.which("curl"):
        found["curl"] = ["curl", "-sSfo", str(to / "model.gguf"), url]
    if shutil.which("curl") and shutil.which("sha256sum"):
        # What a person types who wants to know that it is the right file.
        both = 'curl -sSfo "$1" "$2" && sha256sum "$1" >/dev/null'
        target = str(to / "model.gguf")
        found["curl+sha256sum"] = ["sh", "-c", both, "sh", target, url]
    if shutil.which("aria2c"):
        found["aria2c"] = ["aria2c", "-q", "-x16", "-s16", "-k1M"]
        found["aria2c"] += ["--file-allocation=none", "-d", str(to), url]
    if importlib.util.find_spec("huggingface_hub"):
        found["huggingface_hub"] = [sys.executable, "-c", hub, str(to)]
    return found


def measure(command: list[str], base: str, size: int, home: Path) -> dict[str, float]:
    """Seconds, CPU seconds for each GiB, and the peak memory of one process in MiB."""
    began = time.perf_counter()
    pid = os.posix_spawnp(
        command[0],
        command,
        {
            **os.environ,
            "HF_ENDPOINT": base,
            "HF_HOME": str(home),  # not what another run left in the user's
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        },
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"{command[0]} ended with {status}")
    return {
        "mib_per_s": size / MIB / seconds,
        "cpu_s_per_gib": (usage.ru_utime + usage.ru_stime) / (size / 1024 / MIB),
        "peak_mib": usage.ru_maxrss / 1024,
    }


def bench(
    size: int, delays: tuple[float, ...], rounds: int, chosen: list[str]
) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory(dir=_fast()) as folder:
        file = Path(folder) / "served"
        # Bit by bit: what this process has ever taken, its children are told to take.
        with file.open("wb") as made:
            for number in range(size // MIB):
                made.write(random.Random(number).randbytes(MIB))
        with file.open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        for delay in delays:
            with serving(file, sha256, delay) as base:
                once(chosen[0], base, sha256, Path(folder) / "to", size)
                seen: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
                # In turn, so that whatever else the machine does meets all of them.
                for _ in range(rounds):
                    for name in chosen:
                        found = once(name, base, sha256, Path(folder) / "to", size)
                        tell(f"{delay * 1000:.0f} ms", name, found["mib_per_s"])
                        seen[name].append(found)
            starts = start_ups(Path(folder), delay, rounds, chosen)
            for name, found in seen.items():
                row: dict[str, str | float] = {"delay_ms": delay * 1000, "client": name}
                middle = {
                    key: statistics.median(one[key] for one in found)
                    for key in found[0]
                }
                rows.append(row | middle | {"start_s": starts[name]})
    return rows


def once(name: str, base: str, sha256: str, to: Path, size: int) -> dict[str, float]:
    """One fetch by one client, into a folder that is gone afterwards."""
    to.mkdir()
    try:
        command = clients(base, sha256, to)[name]
        return measure(command, base, size, to.with_name("home"))
    finally:
        shutil.rmtree(to)


def tell(where: str, name: str, rate: float) -> None:
    """One measurement, at once: a run that is ended early has said something."""
    sys.stderr.write(f"{where:>6}  {name:<16} {rate:7.0f} MiB/s\n")
    sys.stderr.flush()


def start_ups(
    folder: Path, delay: float, rounds: int, chosen: list[str]
) -> dict[str, float]:
    """Seconds for a file of one byte, the median of *rounds*."""
    file = folder / "one"
    file.write_bytes(b"1")
    sha256 = hashlib.sha256(b"1").hexdigest()
    seen: dict[str, list[float]] = {name: [] for name in chosen}
    with serving(file, sha256, delay) as base:
        for _ in range(rounds):
            for name in chosen:
                found = once(name, base, sha256, folder / "to", MIB)
                seen[name].append(1 / found["mib_per_s"])
    return {name: statistics.median(seconds) for name, seconds in seen.items()}


def _fast() -> str:
    """Storage that is not what is measured."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--mib", type=int, default=2048, help="size of the file")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", metavar="NAME,…", help="these, and no others")
    arguments = parser.parse_args()
    if arguments.serve:
        file, sha256, delay = arguments.serve
        serve(Path(file), sha256, float(delay))
        return
    here = list(clients("", "", Path()))
    chosen = arguments.clients.split(",") if arguments.clients else here
    if not set(chosen) <= set(here):
        parser.error(f"--clients: here are {','.join(here)}")
    rows = bench(arguments.mib * MIB, (0.0, 0.02), arguments.rounds, chosen)
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for row in rows:
        others = [
            float(str(r["mib_per_s"]))
            for r in rows
            if r["delay_ms"] == row["delay_ms"] and r["client"] != "llmgw"
        ]
        beside = (
            f"{float(str(row['mib_per_s'])) / max(others):5.2f} x the fastest other"
            if others
            else ""
        )
        sys.stdout.write(
            f"{row['delay_ms']:>4.0f} ms  {row['client']:<16} "
            f"{row['mib_per_s']:7.0f} MiB/s  {row['cpu_s_per_gib']:5.2f} CPU s/GiB  "
            f"{row['peak_mib']:5.0f} MiB peak  {row['start_s']:5.2f} s to start  "
            f"{beside}\n"
        )


if __name__ == "__main__":
    main()
