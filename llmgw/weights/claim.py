"""Who fetches, when several could: a file that says so, and is seen to be alive.

No lock of the kernel's is used. On Lustre, GPFS, NFS and CIFS flock is node-local or
nothing at all, and two that both believe to hold it append to one file (T68). A lock
file that a dead process left blocks for ever (T69). Here a claim is a small file made
with link(2), and its owner counts up in it. One that has died, or whose count stands
still, loses it to whoever notices.

Should two ever fetch the same all the same, because a network file system showed
them different truths, they waste bytes and nothing else: each writes to an inode of
its own, verifies it, and publishes by rename.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from llmgw.weights.journal import boot_id

MACHINE_ID = Path("/etc/machine-id")
# One that claimed before this machine's boot is most likely gone, and is waited for so
# much less: after a power cut every fetch would stand still for the whole of it.
EARLIER_BOOT = 4
# So often in a row the folder may be swept away between its making and its use.
SWEPT = 100


class Owner(Struct, frozen=True, kw_only=True):
    """A process, so that another on the same machine can tell whether it lives.

    *machine* "": it has no id, or the claim is an older version's.
    """

    node: str
    machine: str = ""
    boot: str
    pids: str
    pid: int
    started: int
    nonce: str


class Claim(Struct, frozen=True, kw_only=True):
    """*done* of *total* bytes; *reserved* once there is room for all of them, and
    *waiting* for the room of more.
    """

    owner: Owner
    key: str
    beat: int = 0
    total: int = 0
    done: int = 0
    reserved: bool = False
    waiting: bool = False


def me() -> Owner:
    """This process, under a name that no other one ever has."""
    return Owner(
        node=os.uname().nodename,
        machine=_machine(),
        boot=boot_id(),
        # The same number in another container is another process.
        pids=str(Path("/proc/self/ns/pid").readlink()),
        pid=os.getpid(),
        started=_started(os.getpid()) or 0,
        nonce=secrets.token_hex(8),
    )


def is_dead(owner: Owner) -> bool:
    """Whether *owner* is certainly gone. False if that cannot be known from here.

    Another boot of a machine of the same name proves nothing: images are cloned.
    """
    here = owner.boot == boot_id() and owner.pids == str(
        Path("/proc/self/ns/pid").readlink()
    )
    return here and _started(owner.pid) != owner.started


def is_of_an_earlier_boot(owner: Owner) -> bool:
    """Whether *owner* ran on this machine before it was booted, by all that it says.

    A clone with the same id and the same name would say the same: no proof of a death.
    """
    return owner.machine == _machine() != "" and owner.boot != boot_id()


def node_hash() -> str:
    """This node, without its id, which is not for telling to others."""
    # Cloned images share the one, and nodes of two sites the other.
    name = _machine_id() + os.uname().nodename
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _machine() -> str:
    return node_hash() if _machine_id() else ""


def _machine_id() -> str:
    try:
        return MACHINE_ID.read_text(errors="replace")
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    try:
        # The name in it is cut after 15 bytes, within a letter as well.
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


class Claims:
    """The claims in *folder*, which all who share the cache see."""

    def __init__(
        self,
        folder: Path,
        silence: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.silence = silence
        self._clock = clock
        self._seen: dict[str, tuple[Claim, float]] = {}

    def take(self, key: str, owner: Owner) -> Claim | None:
        """Make *owner* the one who fetches *key*; whoever is it already, else None."""
        path = self.folder / key / "claim"
        beside = path.with_name(f"{owner.nonce}.claim")
        swept = 0
        try:
            while True:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    beside.write_bytes(msgspec.json.encode(Claim(owner=owner, key=key)))
                    if self._take(key, path, beside):
                        return None
                except FileNotFoundError:
                    # Whoever was last swept the folder at this moment; or it is one
                    # where nothing can be made, as below /proc.
                    swept += 1
                    if swept == SWEPT:
                        raise
                    continue
                found = self.read(key)
                if found is not None:
                    return found
                # Given up or broken since: nobody has it, and so we may.
        finally:
            beside.unlink(missing_ok=True)

    def _take(self, key: str, path: Path, beside: Path) -> bool:
        try:
            os.link(beside, path)
        except FileExistsError:
            found = self.read(key)
            if found is None or self._is_over(key, found):
                self._break(path, beside)
            return False
        else:
            return True

    def _is_over(self, key: str, found: Claim) -> bool:
        if is_dead(found.owner):
            return True
        before = self._seen.get(key)
        now = self._clock()
        if before is None or before[0] != found:
            # Their clock is not asked: what counts is that the number moves.
            self._seen[key] = (found, now)
            return False
        patience = self.silence
        if is_of_an_earlier_boot(found.owner):
            patience /= EARLIER_BOOT
        return now - before[1] > patience

    def _break(self, path: Path, beside: Path) -> None:
        """Move the dead one's claim away. Of several who try, one succeeds."""
        aside = beside.with_suffix(".broken")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return
        aside.unlink(missing_ok=True)

    def read(self, key: str) -> Claim | None:
        try:
            raw = (self.folder / key / "claim").read_bytes()
            return msgspec.json.decode(raw, type=Claim)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def beat(self, claim: Claim) -> bool:
        """Say that its owner lives; False if the claim is another's by now."""
        key = claim.key
        found = self.read(key)
        if found is None or found.owner.nonce != claim.owner.nonce:
            return False
        path = self.folder / key / "claim"
        beside = path.with_name(f"{claim.owner.nonce}.claim")
        beside.write_bytes(msgspec.json.encode(claim))
        beside.replace(path)
        return True

    def give_up(self, key: str, owner: Owner) -> None:
        found = self.read(key)
        if found is not None and found.owner.nonce == owner.nonce:
            (self.folder / key / "claim").unlink(missing_ok=True)
            try:
                (self.folder / key).rmdir()
            except OSError:
                pass  # something unfinished lies there, or another has claimed it

    def all(self) -> list[Claim]:
        """Every claim whose owner is not known to be gone."""
        found = [self.read(path.parent.name) for path in self.folder.glob("*/claim")]
        return [c for c in found if c is not None and not self._is_over(c.key, c)]
