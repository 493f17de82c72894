"""Disks that are as small as a test wants them."""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small(folder: Path, mib: int) -> Generator[Path]:
    """*folder* as a file system of its own, in memory."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs needs root: use sudo")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
