"""The command engine runs what the node's file names, and nothing else."""

import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.installed import choose
from llmgw.engines.place import Build
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch
from llmgw.wire import Group
from tests.engines.places import place, replica

SETTINGS = keys.Command(
    enabled=True,
    path="/usr/bin/serve",
    args=("--listen", "{host}:{port}", '--json={"a": {}}'),
    env={"NAME": "{id}"},
    allow_args=("--model",),
)
BUILD = Build(name="(path)", engine="command", binary="/usr/bin/serve")
WANTED = replica(engine="command", args=("--model", "{model}"))


def test_its_arguments_are_filled_in() -> None:
    assert engines.launch(WANTED, place(settings=SETTINGS, build=BUILD)) == Launch(
        argv=(
            "/usr/bin/serve",
            *("--listen", "10.0.0.7:20000", '--json={"a": {}}'),
            *("--model", "/w/q.gguf"),
        ),
        env={"NAME": "qwen-0"},
        host="10.0.0.7",
        ports={"api": 20000},
        health=Health(path="/health"),
    )


def test_no_other_program_can_be_had_by_installing_a_build() -> None:
    other = Build(name="mine", engine="command", binary="/opt/e/mine/run")

    assert choose((other, BUILD), WANTED) == BUILD
    with pytest.raises(EngineError, match="there is no build mine of command"):
        choose((other, BUILD), replica(engine="command", build="mine"))
    with pytest.raises(EngineError, match="there is no build of command"):
        choose((other,), WANTED)


def test_it_spans_no_nodes() -> None:
    group = Group(id="g", rank=0, size=2, head="10.0.0.7", port=1)
    wanted = replica(engine="command", group=group)

    with pytest.raises(EngineError, match="does not span nodes"):
        engines.launch(wanted, place(settings=SETTINGS, build=BUILD))
