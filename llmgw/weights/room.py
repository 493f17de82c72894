"""Room for one job's files, as it learns how long they are, and how far it is."""

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llmgw.errors import WeightsError
from llmgw.weights.beating import Beating
from llmgw.weights.cache import Cache
from llmgw.weights.claim import Claims
from llmgw.weights.order import Begin
from llmgw.weights.parts import part_of
from llmgw.weights.space import Space, shown
from llmgw.wire import Progress

# All who hold room are seen to wait for each other so often in a row before one of them
# gives way: each sees the others' claims a moment late.
STUCK = 3
# What went wrong is told for so long after it did, though bytes come again: of a server
# that breaks every few seconds a person sees why it is slow.
WHY_LASTS = 10.0


class Account:
    """How much of how much, over all files of a job."""

    def __init__(
        self,
        report: Callable[[Progress], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._clock = clock
        self._why = ""
        self._why_until = 0.0
        self._files = self._whole = 0
        self._sizes: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def size(self, sizes: dict[str, int]) -> int:
        with self._lock:
            self._sizes |= sizes
            return sum(self._sizes.values())

    def rest(self, on_disk: Callable[[str], int]) -> int:
        """So much of all of them has yet to find room."""
        with self._lock:
            sizes, done = dict(self._sizes), dict(self._done)
        return sum(
            max(0, size - max(done.get(name, 0), on_disk(name)))
            for name, size in sizes.items()
        )

    def begin(self, files: int) -> None:
        """So many files are to come."""
        with self._lock:
            self._files, self._whole = files, 0

    def has_one_more(self) -> None:
        """A file lies whole."""
        with self._lock:
            self._whole += 1

    def note(self, name: str, done: int) -> tuple[int, int]:
        with self._lock:
            self._done[name] = done
            what = self._what()
        return self.say(what)

    def again(self, why: str, seconds: float) -> None:
        """Something went wrong, and is tried again in so many seconds."""
        with self._lock:
            when = f" in {math.ceil(seconds)} s" if seconds > 0 else ""
            self._why = f"asked again{when} ({why})"
            self._why_until = self._clock() + seconds + WHY_LASTS
            what = self._what()
        self.say(what)

    def _what(self) -> str:
        what = "fetching"
        if self._files > 1:
            what += f", {self._whole} of {self._files} files here"
        return f"{what}, {self._why}" if self._clock() < self._why_until else what

    def say(self, what: str) -> tuple[int, int]:
        with self._lock:
            now = sum(self._done.values()), sum(self._sizes.values())
        self._report(Progress(what=what, done=now[0], total=now[1] or None))
        return now


class Room:
    """Waits for room, or says why there will be none."""

    def __init__(
        self,
        begin: Begin,
        claims: Claims,
        beating: Beating,
        account: Account,
        pause: Callable[[float], None],
    ) -> None:
        self._limit = begin.settings.cache_limit
        self._is_flat = begin.flat
        self._cache = Path(begin.cache)
        self._space = Space(self._cache, claims)
        self._account = account
        self._beating = beating
        self._pause = pause
        self._lock = threading.Lock()
        self._stuck = 0
        # What this job has is in the way of others, as theirs is in its own.
        self.gave_way = False

    def reserve(self, sizes: dict[str, int], parts: Path) -> None:
        """Have room for *sizes*, beside what was asked for before."""
        with self._lock:
            total = self._account.size(sizes)
            needed = self._needed(parts)
            claim = self._beating.claim
            self._beating.update((total - needed, total))
            if claim.reserved and claim.total != total:
                # What others do not know of they would take.
                self._beating.beat()
            self._keep_limit(total)
            try:
                while not self._is_promised(needed):
                    self._make_way(needed)
                    needed = self._needed(parts)
            finally:
                self._beating.wait(False)

    def _needed(self, parts: Path) -> int:
        """By all that is known of: what was promised to one file is not there for the
        next, though it is not on the disk yet.
        """
        return self._account.rest(lambda name: _on_disk(part_of(parts, name)))

    def _make_way(self, needed: int) -> None:
        """See that there may be room for *needed* at the next look, or say why not."""
        missing = self._space.missing(self._beating.claim, needed)
        if not missing:
            return  # whoever had it a moment ago gave it back
        if self._limit is not None and Cache(self._cache).make_room(missing):
            return
        others = self._space.others(self._beating.claim)
        if not others:
            raise self._space.refusal(missing, needed, self._freeable())
        is_stuck = self._space.is_stuck(self._beating.claim, others)
        self._stuck = self._stuck + 1 if is_stuck else 0
        if self._stuck >= STUCK:
            self.gave_way = True
            raise self._space.stuck(missing, len(others), self._freeable())
        self._beating.wait(True)
        self._account.say(
            f"waiting for {shown(missing)} of disk, beside {len(others)} other fetches"
        )
        self._pause(1.0)

    def _is_promised(self, needed: int) -> bool:
        """Whether there is room for *needed*, and all who share the cache know it."""
        if self._space.missing(self._beating.claim, needed):
            return False
        had = self._beating.claim.reserved
        self._beating.reserve(True)
        if had or not self._space.missing(self._beating.claim, needed):
            return True
        # Of two that looked at the same moment neither had seen the other: both filled
        # the disk. Now that both have said it, one sees it at least, and steps back.
        self._beating.reserve(False)
        return False

    def _keep_limit(self, total: int) -> None:
        if self._limit is None or self._is_flat:
            return
        cache = Cache(self._cache)
        taken = sum(item.size for item in cache.items())
        over = taken + total - self._limit
        if over > 0 and cache.make_room(over) < over:
            raise WeightsError(
                f"{shown(total)} more would be above weights.cache_limit, "
                f"{shown(self._limit)}",
                where=str(self._cache),
                fix="what is left is pinned or used: `llmgw weights list`",
                final=False,
            )

    def _freeable(self) -> str:
        items = [i for i in Cache(self._cache).items() if not (i.pinned or i.in_use)]
        if not items:
            return ""
        first = items[0]
        return (
            f"`llmgw weights evict {first.folder}` frees {shown(first.size)}; "
            f"all that is unused is {shown(sum(i.size for i in items))}"
        )


def _on_disk(part: Path) -> int:
    """What *part* takes already: it is as long as the whole file from its start on."""
    try:
        return os.stat(part).st_blocks * 512  # noqa: PTH116 -- blocks, as in stat(2)
    except FileNotFoundError:
        return 0
