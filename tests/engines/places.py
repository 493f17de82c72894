"""A node for engines to run on, written down."""

import msgspec

from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.wire import Group, Model, Replica

BUILD = Build(
    name="b1",
    engine="llamacpp",
    binary="/opt/e/b1/bin/llama-server",
    digest="sha256:b1",
    rpc_binary="/opt/e/b1/bin/rpc-server",
)
MODEL = Model(name="qwen", source="hf://org/qwen/q.gguf")

PLACE = Place(
    settings=keys.LlamaCpp(),
    build=BUILD,
    ports={"api": 20000},
    host="10.0.0.7",
    weights={MODEL.source: "/w/q.gguf"},
    threads=4,
    interface="bond0",
)
GROUP = Group(
    id="g",
    rank=0,
    size=2,
    head="10.0.0.7",
    port=29500,
    fabric="ib-a",
    members=("10.0.0.7:0", "10.0.0.8:20005"),
    build_digest="sha256:b1",
)


def place(base: Place = PLACE, **changes: object) -> Place:
    return msgspec.structs.replace(base, **changes)


def replica(**changes: object) -> Replica:
    one = Replica(id="qwen-0", generation=1, engine="llamacpp", model=MODEL)
    return msgspec.structs.replace(one, **changes)


def member(rank: int, **changes: object) -> Group:
    return msgspec.structs.replace(GROUP, rank=rank, **changes)
