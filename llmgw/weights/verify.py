"""Digests of files that lie somewhere: computed once, and known until they change."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgw import files
from llmgw.weights import marker
from llmgw.weights.parts import WORK

_STEP = 8 * 1024 * 1024

Tell = Callable[[str, int, int], None]


def sha256(path: Path, tell: Tell) -> str:
    """Read all of *path*. *tell* hears how far it is, and may raise to end it."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_STEP):
            digest.update(chunk)
            done += len(chunk)
            tell("verifying", done, total)
    return digest.hexdigest()


def known_sha256(path: Path, cache: Path, tell: Tell) -> str:
    """Its digest, from the notes in *cache* if the file is the one noted there."""
    notes = cache / WORK / "digests.json"
    try:
        known = msgspec.json.decode(notes.read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.DecodeError):
        known = {}
    stamp = marker.stamp(path)
    noted = known.get(str(path))
    if noted is not None and noted[0] == stamp:
        return noted[1]
    found = sha256(path, tell)
    try:
        notes.parent.mkdir(parents=True, exist_ok=True)
        known[str(path)] = [stamp, found]
        files.replace(notes, msgspec.json.encode(known))
    except OSError:
        pass  # a cache that cannot be written to: it is read again next time
    return found
