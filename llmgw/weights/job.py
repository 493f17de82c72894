"""One source, from what is asked to what lies complete in the cache."""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llmgw import files
from llmgw.errors import WeightsError
from llmgw.weights import marker
from llmgw.weights.claim import BEAT, Claim, Claims, Owner, is_dead
from llmgw.weights.faults import Cancelled
from llmgw.weights.file import Got, Wanted, Watch, fetch
from llmgw.weights.http import PUBLIC
from llmgw.weights.order import Begin
from llmgw.weights.origin import OnDisk, Server
from llmgw.weights.pool import Pool
from llmgw.weights.sources import (
    Hub,
    Local,
    Source,
    Web,
    file_name,
    masked,
    parse,
    place,
    sha256_of,
)
from llmgw.wire import Progress

log = logging.getLogger(__name__)

WORK = ".llmgw-fetch"


class Job:
    """Runs in a thread of its own in the fetch process. `cancel` ends it early."""

    def __init__(
        self,
        begin: Begin,
        source: str,
        digest: str | None,
        *,
        pool: Pool,
        owner: Owner,
        report: Callable[[Progress], None],
    ) -> None:
        self._begin = begin
        self._name = masked(source)
        self._sha256 = sha256_of(digest, self._name)
        self._source: Source = parse(source, digest)
        self._pool = pool
        self._owner = owner
        self._report = report
        self._cancelled = threading.Event()
        self._sizes: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()
        self._cache = Path(begin.cache)
        self._claims = Claims(self._cache / WORK)

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> Path:
        """Where the weights lie. WeightsError; Cancelled after `cancel`."""
        try:
            folder = self._folder()
            names = marker.whole(folder, self._name, self._sha256)
            if names is None:
                self._cache.mkdir(parents=True, exist_ok=True)
                names = self._fetched(folder)
        except OSError as error:
            raise WeightsError(
                f"cannot be used: {error.strerror}",
                where=str(error.filename or self._cache),
                fix="weights_cache must be a folder the agent can write to",
            ) from error
        return answer(folder, names)

    def _folder(self) -> Path:
        if self._begin.flat:
            return self._cache
        return self._cache / place(self._source, self._sha256)

    def _fetched(self, folder: Path) -> tuple[str, ...]:
        """Fetch it, or see another do so."""
        key = hashlib.sha256(str(folder.relative_to(self._cache)).encode()).hexdigest()[
            :24
        ]
        while True:
            other = self._claims.take(key, self._owner)
            if other is None:
                break
            self._tell_of(other)
            self._pause(1.0)
            names = marker.whole(folder, self._name, self._sha256)
            if names is not None:
                return names
        try:
            # It may have been finished between the look and the claim.
            names = marker.whole(folder, self._name, self._sha256)
            if names is not None:
                return names
            parts = self._parts(key)
            try:
                with _Beating(self._claims, key, self._owner, self._claim):
                    return self._bring(folder, parts)
            finally:
                _sweep(parts)
        finally:
            self._claims.give_up(key, self._owner)

    def _tell_of(self, other: Claim) -> None:
        self._report(
            Progress(
                what=f"fetched by {other.owner.node}, pid {other.owner.pid}",
                done=other.done,
                total=other.total or None,
            )
        )

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled

    def _parts(self, key: str) -> Path:
        """The folder for unfinished files, with what a dead one left in it."""
        mine = self._cache / WORK / key / self._owner.nonce
        for folder in (self._cache / WORK / key).iterdir():
            if folder == mine or not folder.is_dir():
                continue
            left_by = marker.owner_of(folder)
            if left_by is not None and is_dead(left_by) and not mine.exists():
                folder.rename(mine)
                log.info("taken over what a dead process left pid=%d", left_by.pid)
        mine.mkdir(exist_ok=True)
        marker.sign(mine, self._owner)
        return mine

    def _bring(self, folder: Path, parts: Path) -> tuple[str, ...]:
        wanted = self._wanted()
        watch = Watch(
            cancelled=self._cancelled.is_set,
            sized=self._sized,
            progress=self._progressed,
            pause=self._pause,
        )
        found = marker.read(folder)
        got: dict[str, Got] = {}

        def one(file: Wanted) -> None:
            part = parts / (
                hashlib.sha256(file.name.encode()).hexdigest()[:16] + ".part"
            )
            got[file.name] = fetch(self._pool, file, part, watch)
            publish(part, folder / file.name)

        with ThreadPoolExecutor(self._begin.settings.connections) as threads:
            # Raises the first that went wrong; the others are told to end.
            for future in [threads.submit(one, file) for file in wanted]:
                try:
                    future.result()
                except BaseException:
                    self._cancelled.set()
                    raise
        names = tuple(sorted(got))
        entries = {
            name: marker.Entry(size=g.size, sha256=g.sha256, validator=g.validator)
            for name, g in got.items()
        }
        marker.write(
            folder,
            marker.Marker(
                files={**found.files, **entries},
                sources={**found.sources, self._name: names},
            ),
        )
        return names

    def _wanted(self) -> Sequence[Wanted]:
        match self._source:
            case Web(url=url):
                origins = (Server(url, PUBLIC),)
                name = file_name(self._source)
                return [Wanted(name=name, origins=origins, sha256=self._sha256)]
            case Local(path=path):
                origins = (OnDisk(Path(path)),)
                name = file_name(self._source)
                return [Wanted(name=name, origins=origins, sha256=self._sha256)]
            case Hub():
                raise WeightsError("hf:// is not built yet", where=self._name)

    def _sized(self, name: str, size: int) -> None:
        with self._lock:
            self._sizes[name] = size

    def _progressed(self, name: str, done: int) -> None:
        with self._lock:
            self._done[name] = done
            claim = self._claim()
        self._report(
            Progress(what="fetching", done=claim.done, total=claim.total or None)
        )

    def _claim(self) -> Claim:
        return Claim(
            owner=self._owner,
            beat=int(time.monotonic() * 1000),
            total=sum(self._sizes.values()),
            done=sum(self._done.values()),
        )


class _Beating:
    """Keeps a claim alive while the work is done."""

    def __init__(
        self, claims: Claims, key: str, owner: Owner, claim: Callable[[], Claim]
    ) -> None:
        self._claims = claims
        self._key = key
        self._owner = owner
        self._claim = claim
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            try:
                self._claims.beat(self._key, self._claim())
            except OSError as error:
                # A full disk or a server that is away: the claim stands still, and
                # if that lasts another may take it, which costs bytes only.
                log.warning("claim not renewed why=%s", error.strerror)


def publish(part: Path, path: Path) -> None:
    """The whole file under its name, at once and for good."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Engines run as other users.
    part.chmod(0o644)
    part.replace(path)
    files.sync_folder(path.parent)
    part.with_name(part.name + ".journal").unlink(missing_ok=True)


def answer(folder: Path, names: tuple[str, ...]) -> Path:
    """What an engine is given: the one file, or the folder."""
    return folder / names[0] if len(names) == 1 else folder


def _sweep(parts: Path) -> None:
    """Leave nothing behind but what a next attempt can go on with."""
    if not any(parts.glob("*.part")):
        for path in parts.iterdir():
            path.unlink(missing_ok=True)
        parts.rmdir()
