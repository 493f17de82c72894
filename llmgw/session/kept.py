"""What the link remembers over a restart: epoch, identity, servers, what was wanted."""

import hashlib
import uuid
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from llmgw import files
from llmgw.salvage import understood
from llmgw.wire import UNDECODABLE, Epoch

NAME = "link.json"
WANTED = "desired.json"
LARGEST = 64 * 1024 * 1024


class Kept(Struct, frozen=True, kw_only=True):
    """*instance* was drawn at random once for this directory on this machine.

    *machine* is a hash of the machine's id: a directory that came here with a disk
    image would otherwise make two nodes one.
    """

    machine: str
    instance: str
    epoch: Epoch = 0
    servers: tuple[str, ...] = ()


class Machine(Struct, frozen=True, kw_only=True):
    """*id_hash* "" where the machine has no id."""

    id_hash: str
    boot_id: str


def machine(root: Path = Path("/")) -> Machine:
    """This machine, as far as it says. Its id itself is not for telling to others."""
    raw = _first_line(root / "etc/machine-id")
    hashed = hashlib.sha256(f"llmgw:{raw}".encode()).hexdigest() if raw else ""
    boot = _first_line(root / "proc/sys/kernel/random/boot_id")
    return Machine(id_hash=hashed, boot_id=boot)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def load(state_dir: Path, id_hash: str) -> tuple[Kept, str | None]:
    """What is remembered; and, if it had to begin anew, why (None at the first start).

    The caller saves it: nothing is written here.
    """
    anew = Kept(machine=id_hash, instance=uuid.uuid4().hex)
    path = state_dir / NAME
    try:
        said = msgspec.json.decode(files.read(path, LARGEST), type=dict[str, Any])
        # Of another version's, the epoch: without it a stale leader would be believed.
        kept, missed = understood(said, Kept, {})
    except FileNotFoundError:
        return anew, None
    except (OSError, *UNDECODABLE) as error:
        return anew, f"cannot be read ({error}); the highest epoch seen is forgotten"
    if kept.machine != id_hash:
        return anew, "was written on another machine and is not used here"
    if "epoch" in missed:
        return kept, "has no epoch that is one; the highest epoch seen is forgotten"
    return kept, None


def save(state_dir: Path, kept: Kept) -> None:
    """On disk when it returns, whole or not at all."""
    state_dir.mkdir(parents=True, exist_ok=True)
    files.replace(state_dir / NAME, msgspec.json.encode(kept))


def load_wanted(state_dir: Path) -> bytes | None:
    """The line of the last complete snapshot, if there is one."""
    try:
        return files.read(state_dir / WANTED, LARGEST)
    except OSError:
        return None


def save_wanted(state_dir: Path, line: bytes) -> None:
    files.replace(state_dir / WANTED, line)
