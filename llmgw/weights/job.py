"""One source, from what is asked to what lies complete in the cache."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from llmgw import files
from llmgw.errors import WeightsError
from llmgw.weights import copied, lying, marker
from llmgw.weights.beating import Beating
from llmgw.weights.cache import Cache
from llmgw.weights.claim import Claim, Claims, Owner
from llmgw.weights.faults import Cancelled
from llmgw.weights.file import Got, Wanted, Watch, fetch
from llmgw.weights.http import Client
from llmgw.weights.order import Begin
from llmgw.weights.parts import (
    WORK,
    clear,
    key_of,
    part_of,
    sweep,
    sweep_all,
    take_over,
)
from llmgw.weights.plan import Plan, Planner, refs
from llmgw.weights.pool import Pool
from llmgw.weights.room import Account, Room
from llmgw.weights.sources import Hub, masked, parse, sha256_of
from llmgw.weights.verify import known_sha256
from llmgw.wire import Progress

log = logging.getLogger(__name__)


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
        self._text = source
        self._shown = masked(source)
        self._sha256 = sha256_of(digest, self._shown)
        self._source = parse(source, digest)
        self._pool = pool
        self._owner = owner
        self._report = report
        self._cancelled = threading.Event()
        self._cache = Path(begin.cache)
        self._claims = Claims(self._cache / WORK, begin.silence)
        self._account = Account(report)
        # What the operator wrote to choose the folder.
        self._setting = "--to" if begin.flat else "weights_cache"

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> Path:
        """Where the weights lie. WeightsError; Cancelled after `cancel`."""
        try:
            return self._there() or self._fetched()
        except OSError as error:
            raise WeightsError(
                f"cannot be used: {error.strerror}",
                where=str(error.filename or self._cache),
                fix=f"{self._setting} must be a folder that can be written to",
            ) from error

    def _there(self) -> Path | None:
        """Weights that lie complete somewhere already."""
        if self._begin.flat:
            return None
        dirs = [self._cache, *map(Path, self._begin.model_dirs)]
        path = copied.there(self._text, self._sha256, dirs)
        if path is not None:
            return path
        for path in copied.candidates(self._source, self._sha256, dirs):
            if self._sha256 is None:
                return path
            if path.is_file():
                found = known_sha256(path, self._cache, self._tell)
                if found == self._sha256:
                    return path
            log.warning("copied file has another digest path=%s", path)
        return None

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._cancelled.is_set():
            raise Cancelled
        self._report(Progress(what=what, done=done, total=total))

    def _fetched(self) -> Path:
        self._pool.wait_until_allowed(self._pause, self._report)
        client = Client()
        try:
            plan = Planner(self._begin.settings, self._rest, client).plan(
                self._source, self._sha256
            )
        finally:
            client.close()
        self._cache.mkdir(parents=True, exist_ok=True)
        folder = self._cache if self._begin.flat else self._cache / plan.folder
        key = key_of("." if self._begin.flat else str(plan.folder))
        while True:
            names = marker.whole(folder, plan.name, self._sha256)
            if names is None:
                names = self._claimed(plan, folder, key)
            if names is not None:
                self._remember(plan, folder)
                return copied.answer(folder, names)

    def _claimed(self, plan: Plan, folder: Path, key: str) -> tuple[str, ...] | None:
        """The files, fetched; None when another fetches them, or took them from us."""
        other = self._claims.take(key, self._owner)
        if other is not None:
            self._report(
                Progress(
                    what=f"fetched by {other.owner.node}, pid {other.owner.pid}",
                    done=other.done,
                    total=other.total or None,
                )
            )
            self._pause(0.5)
            return None
        beating = Beating(self._claims, Claim(owner=self._owner, key=key))
        work = self._cache / WORK / key
        parts = work / self._owner.nonce
        try:
            # Inside: a full disk refuses even a folder, and a claim that was left by
            # one who lives is waited for by everybody. And beating: what another
            # machine left is copied, which takes longer than a claim may be silent.
            with beating:
                take_over(work, self._owner)
                # It may have been finished between the look and the claim.
                names = marker.whole(folder, plan.name, self._sha256)
                is_new = names is None
                if names is None:
                    names = self._bring(plan, folder, parts, beating)
            if is_new:
                sweep_all(work)
        except (Cancelled, FileNotFoundError):
            if self._cancelled.is_set() or not beating.lost.is_set():
                raise
            return None
        else:
            return names
        finally:
            sweep(parts)
            self._claims.give_up(key, self._owner)

    def _bring(
        self, plan: Plan, folder: Path, parts: Path, beating: Beating
    ) -> tuple[str, ...] | None:
        broken = threading.Event()

        def is_over() -> bool:
            return any(e.is_set() for e in (self._cancelled, beating.lost, broken))

        room = Room(self._begin, self._claims, beating, self._account, self._pause)
        here = lying.whole(folder, plan.files)
        missing = [file for file in plan.files if file.name not in here]
        sizes = {f.name: f.about if f.size is None else f.size for f in missing}
        known = {name: size for name, size in sizes.items() if size is not None}
        if missing and len(known) == len(missing):
            room.reserve(known, parts)
        watch = Watch(
            cancelled=is_over,
            sized=lambda name, size: room.reserve({name: size}, parts),
            progress=lambda name, done: beating.update(self._account.note(name, done)),
            again=self._account.again,
            rest=self._rest,
        )
        self._account.begin(len(missing))
        got: dict[str, Got] = {}

        def one(file: Wanted) -> None:
            if is_over():
                raise Cancelled
            got[file.name] = fetch(self._pool, file, part_of(parts, file.name), watch)
            self._account.has_one_more()

        with ThreadPoolExecutor(self._begin.settings.connections) as threads:
            futures = [threads.submit(one, file) for file in missing]
            ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
            fault = next((f for f in ended if f.exception()), None)
            if fault is not None:
                # The first that went wrong is told, and the rest need not go on.
                broken.set()
                for future in futures:
                    future.cancel()
        if fault is not None:
            if room.gave_way:
                clear(parts)
            fault.result()
        lying.publish(folder, parts, got)
        lying.mark(plan, folder, here | got)
        # None if what lay there was evicted meanwhile.
        return marker.whole(folder, plan.name, self._sha256)

    def _remember(self, plan: Plan, folder: Path) -> None:
        Cache(self._cache).used(folder)
        if plan.moving and isinstance(self._source, Hub) and not self._begin.flat:
            ref = self._cache / refs(self._source) / plan.moving
            commit = plan.folder.name
            if copied.named_in(ref) != commit:
                ref.parent.mkdir(parents=True, exist_ok=True)
                files.replace(ref, commit.encode() + b"\n", mode=0o644)

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled

    def _rest(self, seconds: float, why: str) -> None:
        """Wait before something is asked again, and tell why all the while."""
        self._account.again(why, seconds)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._pause(min(left, 1.0))
            self._account.again(why, max(0.0, until - time.monotonic()))
        self._pause(0.0)
