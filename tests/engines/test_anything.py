"""Whatever a control plane asks for is launched or refused: nothing else is raised.

What is wanted comes from outside, and an error that nobody expects ends the agent.
"""

from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from llmgw import engines
from llmgw.config import keys
from llmgw.errors import EngineError
from llmgw.wire import Group, Lora, Model, Replica
from tests.engines.places import MODEL, PLACE, place, replica

ALLOWED = keys.Engines(command=keys.Command(enabled=True, path="/bin/e"))

WORDS = st.one_of(
    st.sampled_from(["", "a", "\0", "..", "{port}", "{host", "{0}", "{weights}", "%"]),
    st.sampled_from(
        ["10.0.0.8:1", "[::1]:1", "h:99999", "-c", "a=b", "hf://a/b", "/m"]
    ),
    st.text(max_size=4),
)
NUMBERS = st.one_of(st.sampled_from((-1, 0, 1, 2, 65536, 2**63 - 1)), st.integers())
WORD_LISTS = st.lists(WORDS, max_size=3).map(tuple)
MODELS = st.sampled_from([MODEL, None]) | st.builds(Model, name=WORDS, source=WORDS)
GROUPS = st.builds(
    Group,
    id=WORDS,
    rank=st.integers(-1, 3),
    size=st.integers(-1, 3),
    head=st.just(PLACE.host) | WORDS,
    port=NUMBERS,
    fabric=st.none() | WORDS,
    members=WORD_LISTS,
    build_digest=st.just(PLACE.build.digest) | WORDS,
)
REPLICAS = st.builds(
    Replica,
    id=st.just("a"),
    generation=st.just(1),
    engine=st.sampled_from((*engines.ENGINES, "nope")),
    model=MODELS,
    gpus=WORD_LISTS,
    cpus=st.none() | st.floats(),
    context=st.none() | NUMBERS,
    parallel=st.none() | NUMBERS,
    args=WORD_LISTS,
    env=st.dictionaries(WORDS, WORDS, max_size=2),
    port=st.none() | NUMBERS,
    group=st.none() | GROUPS,
    mmproj=MODELS,
    lora=st.lists(st.builds(Lora, source=WORDS, scale=st.floats()), max_size=1).map(
        tuple
    ),
    embeddings=st.booleans(),
)


@given(REPLICAS)
@example(
    replica(group=Group(id="g", rank=3, size=1, head="h", port=1, members=("h:1",)))
)
def test_a_replica_is_launched_or_refused(wanted: Replica) -> None:
    with suppress(EngineError):
        engines.port(wanted)
    with suppress(EngineError):
        engines.awaits(wanted)
    with suppress(EngineError):
        section = engines.admit(wanted, ALLOWED)
        names = engines.ports(wanted)
        ports = {name: 20000 + number for number, name in enumerate(names)}
        assert engines.launch(wanted, place(settings=section, ports=ports)).argv
