"""A file that came whole and hashes wrong: find the piece, fetch that, and no more.

A server that gives a digest with each range (RFC 9530) never gets here: its wrong
range is asked for again at once. With nothing but the digest of the whole file
nobody can say which piece is wrong; but a second read can: what differs from the
first is fetched wrong in one of the two. Pieces whose connection broke are read
first, and reading ends when the digest fits (T73).

Over TLS, bytes that came in good order are the server's own. Reading them again
would fetch the same, and a wrong digest in a profile would cost the file twice.
"""

import hashlib
import logging
from collections.abc import Iterator

from llmgw.weights.blocks import BLOCK
from llmgw.weights.faults import Again
from llmgw.weights.origin import Origin, Reader
from llmgw.weights.part import Part
from llmgw.weights.waiting import Rest, patiently

log = logging.getLogger(__name__)


def mend(
    origin: Origin,
    part: Part,
    sha256: str,
    broke: set[int],
    rest: Rest,
) -> bool:
    """Whether *part* has the digest *sha256* now. What differed was written anew."""
    reader = Reader()
    try:
        for piece in _suspects(origin, part, broke):
            differs = patiently(
                lambda n=piece: _read_again(origin, part, n, reader), rest
            )
            if differs:
                log.warning(
                    "piece was wrong, fetched again piece=%d url=%s", piece, origin
                )
                part.sync()
                if digest_of(part) == sha256:
                    return True
            rest(0.0, "what came has another digest")
    finally:
        reader.client.close()
    return False


def _suspects(origin: Origin, part: Part, broke: set[int]) -> Iterator[int]:
    yield from sorted(broke)
    if not origin.is_authentic:
        yield from (n for n in range(len(part.upto)) if n not in broke)


def _read_again(origin: Origin, part: Part, piece: int, reader: Reader) -> bool:
    """Read *piece* once more; where it is not what is here, it replaces that."""
    start = piece * part.begun.piece
    at, end = start, start + part.length(piece)
    new, old = memoryview(bytearray(BLOCK)), memoryview(bytearray(BLOCK))
    differs = False
    with reader.range(origin, at, end) as opened:
        while at < end:
            count = opened.read_into(new[: min(BLOCK, end - at)])
            if not count:
                raise Again(f"the answer ended {end - at} bytes early")
            if part.read(at, old[:count]) != count or old[:count] != new[:count]:
                part.put(at, new[:count])
                differs = True
            at += count
    return differs


def digest_of(part: Part) -> str:
    """The SHA-256 of what lies there now, read once."""
    digest, at = hashlib.sha256(), 0
    block = memoryview(bytearray(BLOCK))
    while at < part.begun.size:
        count = part.read(at, block[: min(BLOCK, part.begun.size - at)])
        digest.update(block[:count])
        at += count
    return digest.hexdigest()
