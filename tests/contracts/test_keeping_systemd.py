"""The backends' contract where systemd runs the machine: a guest, booted for it.

The guest is this machine's own root under an overlay that is thrown away, started by
systemd-nspawn with a target that holds nothing but the tests.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.supervisor import exec
from tests.contracts.test_keeping import GUEST_STATE

REPOSITORY = Path(__file__).parents[2]
TEMPLATE = f"""
[Unit]
StartLimitIntervalSec=0
[Service]
Type=exec
ExecStart={sys.executable} -I -S {exec.__file__} {GUEST_STATE}/run/%i/launch
Restart=no
KillMode=mixed
TimeoutStopSec=5
"""
# The session's environment is not the guest's: what pytest needs is written here.
TESTS = f"""
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
FailureActionExitStatus=1
SuccessActionExitStatus=0
[Service]
Type=oneshot
WorkingDirectory={REPOSITORY}
Environment=HOME=/root
ExecStart={sys.executable} -m pytest -q -p no:cacheprovider -p no:xdist -k systemd \\
    tests/contracts/test_keeping.py
StandardOutput=file:/results
StandardError=inherit
"""
TARGET = """
[Unit]
Requires=llmgw-contract.service
After=llmgw-contract.service
"""
BOOT = """
mount --make-rprivate /
mount -t proc proc /proc
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$NAME"
echo $$ > "/sys/fs/cgroup/$NAME/cgroup.procs"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/up,workdir=$DIR/work" "$DIR/root"
ip link set lo up
exec systemd-nspawn --quiet --boot --register=no --keep-unit -M "$NAME" -D "$DIR/root" \
    --private-network --resolv-conf=off --timezone=off --link-journal=no \
    --bind-ro="$PREFIX" --bind-ro="$BASE" --bind-ro="$REPOSITORY" \
    --console=pipe
"""
# A guest outlives an nspawn that is killed, but not the pid namespace they share.
APART = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child")


def _missing() -> str:
    if os.geteuid() != 0:
        return "run as root: only root boots a guest"
    for program in ("systemd-nspawn", "unshare"):
        if not shutil.which(program):
            return f"install systemd-container and util-linux: no {program}"
    if not Path("/lib/systemd/systemd").exists():
        return "install systemd: the guest is this machine's own root"
    return ""


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: an overlay can't be written to below its own lower layer."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="llmgw-guest-") as name:
        yield Path(name)


@pytest.mark.timeout(120)
@pytest.mark.skipif(bool(_missing()), reason=_missing() or "everything is there")
def test_units_of_systemd_keep_the_contract(folder: Path) -> None:
    for part in ("up", "work", "root"):
        (folder / part).mkdir()
    units = folder / "up/etc/systemd/system"
    units.mkdir(parents=True)
    (units / "llmgw-engine@.service").write_text(TEMPLATE)
    (units / "llmgw-contract.service").write_text(TESTS)
    (units / "llmgw-contract.target").write_text(TARGET)
    # Not `nspawn … -- --unit=`: nspawn 262 keeps that to itself and boots everything.
    (units / "default.target").symlink_to("llmgw-contract.target")
    (folder / "up/etc/machine-id").write_text("")
    name = folder.name[:40].replace("_", "-").lower()
    try:
        boot = subprocess.run(
            [*APART, "sh", "-euc", BOOT],
            env={
                "PATH": os.environ["PATH"],
                "NAME": name,
                "DIR": str(folder),
                "PREFIX": sys.prefix,
                "BASE": sys.base_prefix,
                "REPOSITORY": str(REPOSITORY),
            },
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
    finally:
        _forget(name)
    results = folder / "up/results"
    text = results.read_text() if results.exists() else boot.stdout + boot.stderr

    assert boot.returncode == 0, text[-6000:]
    assert " passed" in text
    assert "skipped" not in text


def _forget(name: str) -> None:
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        for folder, _, _ in os.walk(f"{mount}/{name}", topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                continue
