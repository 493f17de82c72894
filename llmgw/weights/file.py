"""One file from one of its origins, whole and verified, or the reason why not."""

import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from llmgw.weights.answers import Meta
from llmgw.weights.faults import Again, Changed, Denied, NoRanges
from llmgw.weights.hub import git_blob
from llmgw.weights.journal import Begun, boot_id
from llmgw.weights.mend import mend
from llmgw.weights.origin import Origin, Reader
from llmgw.weights.part import PIECE, Part, discard
from llmgw.weights.pool import Pool
from llmgw.weights.stream import Stream
from llmgw.weights.transfer import Transfer, refusal
from llmgw.weights.waiting import Rest, patiently

log = logging.getLogger(__name__)


class Wanted(Struct, frozen=True, kw_only=True):
    """A file to have, *name* below its folder, from the first origin that gives it."""

    name: str
    origins: tuple[Origin, ...]
    size: int | None = None
    # How long it was when it was listed; whoever owns it may write to it since.
    about: int | None = None
    sha256: str | None = None
    # Git's id of a file that git itself keeps: the hub gives no other digest of it.
    blob: str | None = None


class Got(Struct, frozen=True, kw_only=True):
    size: int
    sha256: str
    validator: str | None


class Watch(Struct, frozen=True, kw_only=True):
    """Who looks on: *sized* is told a length before the first byte is asked for.

    *again* hears what went wrong, and in how many seconds it is tried again.
    """

    cancelled: Callable[[], bool]
    sized: Callable[[str, int], None]
    progress: Callable[[str, int], None]
    again: Callable[[str, float], None]
    rest: Rest


def fetch(pool: Pool, wanted: Wanted, part: Path, watch: Watch) -> Got:
    """Bring *wanted* to *part*, synced and verified. WeightsError says why not."""
    assert wanted.origins, "a plan names at least where it was asked for"
    for origin in wanted.origins[:-1]:
        try:
            return _from(pool, origin, wanted, part, watch)
        except (Again, Denied) as error:
            log.warning("origin given up url=%s why=%s", origin, error)
            watch.again(f"{origin}: {error}", 0.0)
    try:
        return _from(pool, wanted.origins[-1], wanted, part, watch)
    except (Again, Denied) as error:
        # Whoever asked says so: logged here as well, one fault was told twice.
        raise refusal(error, str(wanted.origins[-1])) from error


def _from(pool: Pool, origin: Origin, wanted: Wanted, part: Path, watch: Watch) -> Got:
    for _ in range(4):
        meta = _probe(origin, watch)
        _compare(wanted, meta)
        try:
            got = _by_what_it_can(pool, origin, meta, wanted, part, watch)
        except Changed:
            # What is here is of the file as it was. Nothing of it is of any use.
            log.warning("file changed meanwhile, begun anew url=%s", origin)
            discard(part)
        else:
            if wanted.blob is not None and git_blob(part, got.size) != wanted.blob:
                discard(part)
                raise Denied("is not the file that the hub describes")
            return got
    raise Again("the file changes faster than it can be fetched")


def _by_what_it_can(
    pool: Pool, origin: Origin, meta: Meta, wanted: Wanted, part: Path, watch: Watch
) -> Got:
    if meta.ranges and meta.size:
        try:
            return _in_pieces(pool, origin, meta, wanted, part, watch)
        except NoRanges:
            log.info("server has no ranges after all url=%s", origin)
    return _in_one_go(pool, origin, meta, wanted, part, watch)


def _probe(origin: Origin, watch: Watch) -> Meta:
    reader = Reader()
    try:
        return patiently(lambda: origin.probe(reader.client), watch.rest)
    finally:
        reader.client.close()


def _compare(wanted: Wanted, meta: Meta) -> None:
    """Refuse before the first byte what cannot become the file that is wanted."""
    if None not in (wanted.sha256, meta.sha256) and wanted.sha256 != meta.sha256:
        raise _other_digest(wanted, str(meta.sha256))
    if None not in (wanted.size, meta.size) and wanted.size != meta.size:
        raise Denied(f"is {meta.size} bytes long there, {wanted.size} were expected")


def _other_digest(wanted: Wanted, found: str) -> Denied:
    return Denied(
        f"is sha256:{found} there, sha256:{wanted.sha256} is wanted",
        fix="is it the file, and the digest, that its maker publishes?",
    )


def _in_pieces(
    pool: Pool, origin: Origin, meta: Meta, wanted: Wanted, path: Path, watch: Watch
) -> Got:
    assert meta.size is not None
    watch.sized(wanted.name, meta.size)
    begun = Begun(
        size=meta.size,
        piece=PIECE,
        validator=meta.validator,
        sha256=wanted.sha256,
        boot=boot_id(),
    )
    part = Part(path, begun)
    transfer = Transfer(
        origin,
        part,
        blocks=pool.blocks,
        hashing=pool.hashed,
        again=watch.again,
        cancelled=watch.cancelled,
    )
    pool.add(transfer)
    try:
        found = transfer.wait(lambda done: watch.progress(wanted.name, done))
        if (
            wanted.sha256 is not None
            and wanted.sha256 != found
            and mend(origin, part, wanted.sha256, transfer.broke, watch.rest)
        ):
            found = wanted.sha256
    finally:
        pool.remove(transfer)
        part.close()
    if wanted.sha256 not in (None, found):
        discard(path)
        raise _other_digest(wanted, found)
    return Got(size=meta.size, sha256=found, validator=meta.validator)


def _in_one_go(
    pool: Pool, origin: Origin, meta: Meta, wanted: Wanted, path: Path, watch: Watch
) -> Got:
    """From a server that knows no ranges: from the start, and again from the start."""
    if meta.size is not None:
        watch.sized(wanted.name, meta.size)
    elif wanted.size is not None:
        watch.sized(wanted.name, wanted.size)
    stream = Stream(
        origin,
        path,
        budget=pool.budget,
        cancelled=watch.cancelled,
        progress=lambda done: watch.progress(wanted.name, done),
    )
    has_digest = wanted.sha256 is not None
    found = patiently(lambda: stream.fetch(has_digest=has_digest), watch.rest)
    size = path.stat().st_size
    if wanted.sha256 not in (None, found):
        discard(path)
        raise _other_digest(wanted, found)
    return Got(size=size, sha256=found, validator=meta.validator)
