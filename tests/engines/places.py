"""A node for engines to run on, written down."""

import msgspec

from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.wire import Model, Replica

BUILD = Build(name="b1", engine="llamacpp", binary="/opt/e/b1/bin/llama-server")
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


def place(**changes: object) -> Place:
    return msgspec.structs.replace(PLACE, **changes)


def replica(**changes: object) -> Replica:
    one = Replica(id="qwen-0", generation=1, engine="llamacpp", model=MODEL)
    return msgspec.structs.replace(one, **changes)
