"""Room on the disk, promised before the first byte (T72).

What is free now is not what is free: the fetches that run will take their rest of
it. Each says in its claim how much that is, and so all who share a cache see it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from llmgw.errors import WeightsError
from llmgw.weights.claim import Claim, Claims

# Left alone: a file system that is full to the last block fails others first.
MARGIN_SHARE = 0.005
LARGEST_MARGIN = 1024**3


class Space:
    """The room below *cache*. *free* is a parameter for disks that tests make up."""

    def __init__(
        self,
        cache: Path,
        claims: Claims,
        *,
        free: Callable[[Path], tuple[int, int]] | None = None,
    ) -> None:
        self._cache = cache
        self._claims = claims
        self._usage = free or _usage

    def missing(self, mine: Claim, needed: int) -> int:
        """Bytes short of *needed*, with all others served; 0 if it fits.

        Of two that ask at the same moment the smaller nonce is first, or both would
        wait for each other.
        """
        total, free = self._usage(self._cache)
        margin = min(int(total * MARGIN_SHARE), LARGEST_MARGIN)
        others = sum(c.total - c.done for c in self.others(mine))
        return max(0, needed + others + margin - free)

    def others(self, mine: Claim) -> list[Claim]:
        """Those that fetch into the same cache now, or will before us."""
        return [
            c
            for c in self._claims.all()
            if c.key != mine.key
            and (c.reserved or (c.total > c.done and _order(c) < _order(mine)))
        ]

    def is_stuck(self, mine: Claim, others: list[Claim]) -> bool:
        """Whether *mine* is to give way: it and all *others* wait for each other.

        Of those that hold room the last does, by the order above.
        """
        if not mine.reserved or not all(c.waiting for c in others):
            return False
        return all(_order(c) < _order(mine) for c in others if c.reserved)

    def refusal(self, missing: int, needed: int, freeable: str) -> WeightsError:
        """Not final: somebody may remove something."""
        return WeightsError(
            f"{shown(needed)} are needed, which is {shown(missing)} more than there is",
            where=str(self._cache),
            fix=freeable or "free space there; nothing in the cache is unused",
            final=False,
        )

    def stuck(self, missing: int, others: int, freeable: str) -> WeightsError:
        """Not final: the others may be done by the next attempt."""
        return WeightsError(
            f"{shown(missing)} more are needed, and {others} other fetches wait for "
            "what this one has; it gives way and begins anew",
            where=str(self._cache),
            fix=freeable or "free space there; nothing in the cache is unused",
            final=False,
        )


def _order(claim: Claim) -> tuple[str, str]:
    return claim.owner.nonce, claim.key


def _usage(folder: Path) -> tuple[int, int]:
    # Not counting what the file system keeps for root: an engine's log may need it.
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def shown(count: int) -> str:
    """Bytes for a person."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} TiB"
