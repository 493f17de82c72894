"""Runs VM tests on guests with a kernel of their own: python3 vm-tests/qemu [TEST...]

Without names, those that the light guests cannot run. As root, on Debian 12 or 13, with
or without KVM. Prints what each test does and a table at the end; 0 if none failed, 77
if this machine cannot run them.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

LITE = Path(__file__).resolve().parents[1] / "lite"
sys.path.insert(0, str(LITE))

import base
import guest
import image
import inside

CANNOT = 77
WANTS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
}
INSIDE = "LLMGW_VM_QEMU_INSIDE"


def main() -> int:
    parser = argparse.ArgumentParser(prog="vm-qemu", description=__doc__)
    parser.add_argument("tests", nargs="*", metavar="TEST")
    parser.add_argument("--source", type=Path, default=base.REPO)
    arguments = parser.parse_args()
    if reason := missing():
        print(f"vm-qemu: cannot run here: {reason}", file=sys.stderr)
        return CANNOT
    known = json.loads((LITE / "nodes.json").read_text())
    runnable = [test for test, about in known.items() if "nodes" in about]
    needing = [test for test in runnable if known[test].get("skipped")]
    chosen: list[str] = arguments.tests or needing
    if unknown := sorted(set(chosen) - set(runnable)):
        parser.error(
            f"no such test: {', '.join(unknown)}; there are {', '.join(runnable)}"
        )
    if INSIDE not in os.environ:
        image.made(base.root())  # asks apt, which the namespaces cannot
        # Networks and processes of their own, which end with this one, killed or not.
        os.environ[INSIDE] = "1"
        own = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child"]
        os.execvp("unshare", [*own, "--mount-proc", sys.executable, *sys.argv])
    return run(chosen, arguments.source)


def run(chosen: list[str], source: Path) -> int:
    folder = image.made(base.root())
    done: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory(prefix="llmgw-vm-qemu-") as scratch:
        accel = guest.prepare(folder, Path(scratch))
        program = Path(scratch) / "source"
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / "llmgw", program / "llmgw", ignore=ignore)
        for test in chosen:
            begin = time.monotonic()
            print(f"\n### {test}", flush=True)
            with tempfile.TemporaryDirectory(dir=scratch) as place:
                status = inside.play(
                    test,
                    lambda name, about, place=place: guest.Guest(
                        name, about, Path(place), folder, program, accel
                    ),
                )
            done[test] = (status, time.monotonic() - begin)
    print(f"\nTest                Result   Seconds   (QEMU, {accel})")
    for test, (status, took) in done.items():
        print(f"{test:<20}{'FAILED' if status else 'passed':<9}{took:.1f}")
    return 1 if any(status for status, _ in done.values()) else 0


def missing() -> str:
    if os.geteuid() != 0:
        return "needs root, to make namespaces and guests"
    if platform.machine() != "x86_64":
        return "the guests are x86-64 machines"
    packages = [package for name, package in WANTS.items() if not shutil.which(name)]
    if packages:
        return f"apt-get install --no-install-recommends {' '.join(packages)}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
