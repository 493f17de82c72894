"""What the agent and its fetch process say to each other: one JSON document a line."""

import msgspec
from msgspec import Struct

from llmgw.config import keys
from llmgw.wire import Progress


class Begin(Struct, frozen=True, kw_only=True, tag="begin"):
    """The first line: how to fetch, and where to. Paths are absolute."""

    settings: keys.Weights
    cache: str
    model_dirs: tuple[str, ...] = ()
    # Lay files straight into the cache folder, as `llmgw pull --to` promises.
    flat: bool = False
    # A claim whose count stands still for so long is taken over. Ten beats: an NFS
    # server that fails over takes some twenty seconds.
    silence: float = 20.0
    # Nothing for so long is a stall: a load balancer that lost its backend keeps the
    # connection open and says nothing, for ever.
    stall: float = 30.0


class Fetch(Struct, frozen=True, kw_only=True, tag="fetch"):
    id: int
    source: str
    digest: str | None = None


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    id: int


class Working(Struct, frozen=True, kw_only=True, tag="working"):
    id: int
    progress: Progress
    came: int = 0


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    id: int
    path: str
    came: int = 0


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    id: int
    what: str
    where: str = ""
    fix: str = ""
    final: bool = True
    came: int = 0


# *came* in every answer: bytes this process has got from anywhere so far.
Order = Begin | Fetch | Cancel
Answer = Working | Done | Failed


def line(message: Order | Answer) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def order(raw: bytes) -> Order:
    return msgspec.json.decode(raw, type=Order)


def answer(raw: bytes) -> Answer:
    return msgspec.json.decode(raw, type=Answer)
