"""File systems under the folders: real ones, and mounts of a captured table."""

from pathlib import Path

import pytest

from llmgw.discovery import disk
from tests.discovery import trees

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw
30 22 0:40 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
31 22 0:41 / /lustre/with\\040space ro,nosuid - nfs4 nas:/x rw"""


def test_a_folder_says_what_it_is_on(tmp_path: Path) -> None:
    found = disk.survey({"state_dir": [str(tmp_path)]})

    (one,) = found.value
    assert one["exists"] is True
    assert one["size"] >= one["now"]["free"] > 0
    assert one["free"] <= one["now"]["free"]
    assert one["mount"]
    assert found.troubles == ()


def test_the_nearest_mount_counts(tmp_path: Path) -> None:
    trees.write(tmp_path, {"proc/self/mountinfo": MOUNTS})
    paths = ["/lustre", "/lustre/with space/x", "/lustrefoo"]

    found = disk.survey({"model_dirs": paths}, str(tmp_path))

    # They are looked for on this machine, which has none of them.
    assert {one["mount"] for one in found.value} == {"/"}
    assert {t.code for t in found.troubles} == {"folder_missing"}
    mounts = disk._mounts(MOUNTS)  # pyright: ignore[reportPrivateUsage]
    assert mounts[2] == ("/lustre/with space", "nfs4", "nas:/x", "ro,nosuid,rw")
    found_mount = disk._mount_of(  # pyright: ignore[reportPrivateUsage]
        "/lustre/with space/x", mounts
    )
    assert found_mount == mounts[2]


def test_a_cache_on_a_read_only_mount_is_an_error(tmp_path: Path) -> None:
    """T80: nothing can be fetched into it."""
    table = f"22 1 254:0 / {tmp_path} ro,relatime - lustre fs rw"
    trees.write(tmp_path, {"proc/self/mountinfo": table})

    found = disk.survey({"weights_cache": [str(tmp_path)]}, str(tmp_path))

    (one,) = found.value
    assert (one["read_only"], one["network"]) == (True, True)
    assert [(t.code, t.severity) for t in found.troubles] == [
        ("folder_read_only", "error")
    ]


def test_a_link_is_followed_and_told(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()

    (one,) = disk.survey({"model_dirs": [f"{tmp_path}/link"]}).value

    assert one["real"] == f"{tmp_path}/real"


@pytest.mark.parametrize(
    ("kind", "may"),
    [
        ("nfs4", True),
        ("lustre", True),
        ("fuse.sshfs", True),
        ("fuse", True),
        ("autofs", True),
        ("ext4", False),
        ("fusectl", False),
    ],
)
def test_what_may_hang_is_known_without_a_look_at_it(
    tmp_path: Path, kind: str, may: bool
) -> None:
    table = f"22 1 254:0 / / rw - ext4 /dev/vda1 rw\n30 22 0:40 / /x rw - {kind} x rw"
    trees.write(tmp_path, {"proc/self/mountinfo": table})

    assert disk.may_hang(tmp_path) is may
