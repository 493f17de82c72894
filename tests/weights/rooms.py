"""Room on a disk, for one that would rather not wait for it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from llmgw.config import keys
from llmgw.weights.beating import Beating
from llmgw.weights.claim import Claim, Claims, me
from llmgw.weights.order import Begin
from llmgw.weights.parts import WORK
from llmgw.weights.room import Account, Room


class Waits(Exception):
    """It would wait for room."""


class Meanwhile(Claims):
    """Claims that have *do* done right after they were looked at for the first time."""

    do: Callable[[], None] | None = None

    def all(self) -> list[Claim]:
        found = super().all()
        do, self.do = self.do, None
        if do is not None:
            do()
        return found


def room(
    cache: Path, key: str, told: list[str], pauses: list[float] | None = None
) -> tuple[Room, Beating, Meanwhile]:
    """Room for one that has claimed *key*, and would rather not wait: given *pauses*,
    not more than five times.
    """
    claims = Meanwhile(cache / WORK, silence=20.0)
    owner = msgspec.structs.replace(me(), nonce=key)
    assert claims.take(key, owner) is None
    beating = Beating(claims, Claim(owner=owner, key=key))
    account = Account(lambda progress: told.append(progress.what))

    def pause(seconds: float) -> None:
        if pauses is None or len(pauses) == 5:
            raise Waits
        pauses.append(seconds)

    begin = Begin(settings=keys.Weights(), cache=str(cache))
    return Room(begin, claims, beating, account, pause), beating, claims
