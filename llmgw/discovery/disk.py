"""The file systems under the folders this node uses. Runs in a child: they can hang."""

import os
from pathlib import Path
from typing import Any

from llmgw.discovery.found import Found, Trouble, known, text

# fmt: off
NETWORK = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs",
    "glusterfs", "9p", "afs", "ocfs2", "gfs2", "wekafs", "orangefs", "pvfs2",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs",
    "fuse.mount-s3", "fuse.gcsfuse", "fuse.rclone",
))
# fmt: on
# What an agent writes to, and cannot do without.
_WRITTEN = ("weights_cache", "state_dir")
# A folder that is missed: a disk that was not mounted looks the same.
_MISSED = {
    "model_dirs": (
        "there is no such folder",
        "mount or make it, or take it out of model_dirs",
    ),
    "weights_cache": (
        "there is no such folder yet",
        "mount what belongs there, or leave it: the first fetch makes the folder",
    ),
}


def may_hang(root: Path = Path("/")) -> bool:
    """Whether any mount of this machine is one that can be dead. Asks none of them."""
    kinds = [m[1] for m in _mounts(text(root / "proc/self/mountinfo") or "")]
    return any(
        kind in NETWORK or kind in ("autofs", "fuse") or kind.startswith("fuse.")
        for kind in kinds
    )


def survey(folders: dict[str, list[str]], root: str = "/") -> Found:
    """*folders*: by what they are for (`model_dirs`, `state_dir`). One entry for each
    folder; those that are on one file system say the same `mount`.
    """
    mounts = _mounts(text(Path(root) / "proc/self/mountinfo") or "")
    value: list[dict[str, Any]] = []
    troubles: list[Trouble] = []
    for use, paths in folders.items():
        for path in paths:
            found, trouble = _folder(use, path, mounts, Path(root))
            value.append(found)
            troubles += trouble
    return Found(value, "statvfs, /proc/self/mountinfo", troubles=tuple(troubles))


def _folder(
    use: str, path: str, mounts: list[tuple[str, str, str, str]], root: Path
) -> tuple[dict[str, Any], list[Trouble]]:
    real = os.path.realpath(path)
    standing = _existing(real)
    found: dict[str, Any] = {"path": path, "use": use, "exists": standing == real}
    if real != os.path.normpath(path):
        found["real"] = real
    mount = _mount_of(standing, mounts)
    if mount is not None:
        where, kind, device, options = mount
        found |= {
            "mount": where,
            "filesystem": kind,
            "device": device,
            "network": kind in NETWORK,
            "read_only": "ro" in options.split(","),
            "rotational": _rotational(device, root),
        }
    try:
        numbers = os.statvfs(standing)
    except OSError as error:
        return _unusable(found, f"{error.strerror}")
    if not os.path.isdir(standing):  # noqa: PTH112 -- an import less in the child
        what = "it" if standing == real else standing
        return _unusable(found, f"{what} is a file, and no folder")
    size = numbers.f_blocks * numbers.f_frsize
    free = numbers.f_bavail * numbers.f_frsize
    # In steps of a hundredth: a log line is not a new inventory.
    step = max(1, size // 100)
    found |= {
        "size": size,
        "free": free // step * step,
        "read_only": found.get("read_only", False)
        or bool(numbers.f_flag & os.ST_RDONLY),
        # By this user; where it is not there yet, whether it can be made.
        "writable": os.access(standing, os.W_OK | os.X_OK),
        "now": {"free": free, "inodes_free": numbers.f_favail},
    }
    return known(found), _troubles(use, path, found)


def _unusable(found: dict[str, Any], why: str) -> tuple[dict[str, Any], list[Trouble]]:
    use = found["use"]
    trouble = Trouble(
        "folder_unusable",
        why,
        where=f"{use}: {found['path']}",
        fix=f"name another folder as {use}, or make that one usable",
        severity="error" if use in _WRITTEN else "warning",
    )
    return known({**found, "reason": why}), [trouble]


def _troubles(use: str, path: str, found: dict[str, Any]) -> list[Trouble]:
    where = f"{use}: {path}"
    troubles: list[Trouble] = []
    if use in _MISSED and not found["exists"]:
        what, fix = _MISSED[use]
        troubles.append(Trouble("folder_missing", what, where, fix))
    if use in _WRITTEN and found["read_only"]:
        troubles.append(
            Trouble(
                "folder_read_only",
                f"is on {found.get('mount', 'a file system')}, mounted read-only",
                where,
                f"name a writable folder as {use}",
                "error",
            )
        )
    if found["size"] and found["now"]["free"] * 50 < found["size"]:
        free, size = (n // 1_000_000 for n in (found["now"]["free"], found["size"]))
        troubles.append(
            Trouble(
                "disk_full",
                f"{free} of {size} MB are free on {found.get('mount', 'its disk')}",
                where,
                f"make room there: below a fiftieth ({size // 50} MB) it is said to be "
                f"full; name another folder as {use} where there is more",
            )
        )
    return troubles


def _existing(path: str) -> str:
    """The folder itself, or the nearest one above that is there."""
    while not os.path.lexists(path) and path != "/":
        path = str(Path(path).parent)
    return path


def _mounts(content: str) -> list[tuple[str, str, str, str]]:
    """Mount point, type, device and options of each line, later ones on top."""
    found: list[tuple[str, str, str, str]] = []
    for line in content.splitlines():
        head, dash, tail = line.partition(" - ")
        left, right = head.split(" "), tail.split(" ")
        if dash and len(left) >= 6 and len(right) >= 3:
            options = f"{left[5]},{right[2]}"
            found.append((_plain(left[4]), right[0], _plain(right[1]), options))
    return found


def _plain(name: str) -> str:
    """Spaces and backslashes are written as octal numbers."""
    for code, sign in (
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ):
        name = name.replace(code, sign)
    return name


def _mount_of(
    path: str, mounts: list[tuple[str, str, str, str]]
) -> tuple[str, str, str, str] | None:
    best = None
    for mount in mounts:
        where = mount[0].rstrip("/")
        inside = path == where or path.startswith(where + "/")
        if inside and (best is None or len(mount[0]) >= len(best[0])):
            best = mount
    return best


def _rotational(device: str, root: Path) -> bool | None:
    """Whether it turns: a disk says so itself, a partition's disk is its parent."""
    name = Path(os.path.realpath(device)).name if device.startswith("/") else ""
    if not name:
        return None
    top = root / "sys/class/block" / name
    said = text(top / "queue/rotational") or text(
        Path(os.path.realpath(top)).parent / "queue/rotational"
    )
    return None if said is None else said == "1"
