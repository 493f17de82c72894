"""Runs the VM tests on systemd-nspawn guests: python3 vm-tests/lite [TEST...]

As root, on Debian 12 or 13 with systemd-container and mmdebstrap. Prints what each test
does and a table at the end; 0 if none failed, 77 if this machine cannot run them.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import base

RUNNING: set[subprocess.Popen[str]] = set()
HERE = Path(__file__).resolve().parent
CANNOT = 77  # as automake and meson read it
WANTS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "nft": "nftables",
}
# A mount of the cgroup tree that only the guests see; networks, processes and mounts of
# their own. The host's stay as they are.
NAMESPACES = """
set -e
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
for folder in /run/netns /run/systemd/nspawn; do
  mkdir -p $folder
  mount -t tmpfs llmgw $folder
done
mount -t tmpfs llmgw "$1"
exec python3 "$0" "$@"
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="vm-lite", description=__doc__)
    parser.add_argument("tests", nargs="*", metavar="TEST")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    parser.add_argument(
        "--source", type=Path, default=base.REPO, help="the checkout under test"
    )
    arguments = parser.parse_args()
    if reason := missing():
        print(f"vm-lite: cannot run here: {reason}", file=sys.stderr)
        return CANNOT
    known = json.loads((HERE / "nodes.json").read_text())
    chosen: list[str] = arguments.tests or sorted(known)
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(
            f"no such test: {', '.join(unknown)}; there are {', '.join(known)}"
        )
    root = base.root()
    # `timeout` ends it so, and every folder is to go then, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="llmgw-vm-lite-") as scratch:
        source = with_bytecode(arguments.source, Path(scratch), root)
        runnable = [test for test in chosen if "skipped" not in known[test]]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            try:
                results = pool.map(partial(run, root, source), runnable)
                done = dict(zip(runnable, results, strict=True))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                for test in tuple(RUNNING):
                    test.kill()
                raise
    print("\nTest                Result   Seconds")
    for test in chosen:
        if test in done:
            status, took = done[test]
            print(f"{test:<20}{'passed' if status == 0 else 'FAILED':<9}{took:.1f}")
        else:
            print(f"{test:<20}skipped  {known[test]['skipped']}")
    return 1 if any(status for status, _ in done.values()) else 0


def missing() -> str:
    if os.geteuid() != 0:
        return "needs root, to make namespaces and guests"
    packages = [package for name, package in WANTS.items() if not shutil.which(name)]
    if packages:
        return f"apt-get install --no-install-recommends {' '.join(packages)}"
    return ""


def with_bytecode(checkout: Path, scratch: Path, root: Path) -> Path:
    """A copy of the program, compiled once by the guests' Python for all of them."""
    copy = scratch / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(checkout / "llmgw", copy / "llmgw", ignore=ignore)
    subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "bash", "-c"),
            'mount --bind "$2" "$1/opt/llmgw/source" && chroot "$1" '
            "/opt/llmgw/bin/python3 -m compileall -q /opt/llmgw/source",
            *("compile", str(root), str(copy)),
        ],
        check=True,
    )
    return copy


def run(root: Path, source: Path, test: str) -> tuple[int, float]:
    """The test's exit status and seconds; what it says comes out in one piece."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"llmgw-{test}-") as folder:
        started = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),  # ends with us, however we end
                *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "--propagation", "private", "bash", "-c", NAMESPACES),
                *(str(HERE / "inside.py"), folder, str(root), str(source), test),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        RUNNING.add(started)
        said, _ = started.communicate()
        RUNNING.remove(started)
    print(f"\n### {test}\n{said}", end="", flush=True)
    return started.returncode, time.monotonic() - begin


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
