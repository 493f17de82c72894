"""The node's own file decides what a control plane may ask of its engines."""

from pathlib import Path

import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.installed import choose, survey
from llmgw.errors import EngineError
from llmgw.wire import Replica
from tests.engines.places import replica


def refusal(wanted: Replica, **section: object) -> EngineError:
    settings = keys.Engines(llamacpp=keys.LlamaCpp(**section))  # pyright: ignore[reportArgumentType] -- a table of cases
    with pytest.raises(EngineError) as caught:
        engines.admit(wanted, settings)
    return caught.value


def test_what_the_replica_has_a_name_for_is_always_allowed() -> None:
    wanted = replica(context=4096, parallel=2, embeddings=True)

    assert engines.admit(wanted, keys.Engines()) == keys.LlamaCpp()


def test_an_unknown_engine_and_one_that_is_turned_off() -> None:
    error = refusal(replica(engine="olama"))
    assert error.what == "'olama' is no engine that this agent knows"
    assert "llamacpp" in error.fix

    error = refusal(replica(), enabled=False)
    assert error.where == "engines.llamacpp.enabled"


def test_the_command_engine_is_off_until_the_file_turns_it_on() -> None:
    error = refusal(replica(engine="command"))

    assert error.what == "the engine command is turned off on this node"


def test_a_free_argument_needs_the_file_and_the_refusal_says_how() -> None:
    wanted = replica(args=("--flash-attn", "on"))

    error = refusal(wanted)
    assert error.what == "the argument --flash-attn is not allowed on this node"
    assert error.where == "args"
    assert 'add "--flash-attn" to engines.llamacpp.allow_args' in error.fix

    allowed = keys.Engines(llamacpp=keys.LlamaCpp(allow_args=("--flash-*",)))
    assert engines.admit(wanted, allowed)


@pytest.mark.parametrize(
    "args",
    [
        ("--host", "0.0.0.0"),
        ("--host=0.0.0.0",),
        ("--hos", "0.0.0.0"),
        ("--ctx_size", "1"),
        ("-t", "-1"),
        ("--temp", "-1", "--threads=-1"),
    ],
)
def test_what_the_agent_decides_cannot_be_asked_for(args: tuple[str, ...]) -> None:
    """T86, T87, T30: no second --host, no threads of -1, however they are spelt."""
    error = refusal(replica(args=args), allow_args=("*",))
    assert "is decided by the agent" in error.what

    error = refusal(replica(), args=args)
    assert error.where == "engines.llamacpp.args"


@pytest.mark.parametrize(
    "args",
    [
        ("-m", "/etc/shadow"),
        ("-m/etc/shadow",),
        ("--model=/etc/shadow",),
        ("--MODEL", "/etc/shadow"),
        ("--mode", "/etc/shadow"),
        ("--log-file", "../../etc/cron.d/x"),
        ("--log_file=../x",),
        ("-hf", "evil/model"),
        ("--temp", "1", "--lora", "../x.gguf"),
        ("--rpc=10.0.0.9:1",),
        ("--api-key", "x"),
        ("--", "--host", "0.0.0.0"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("pattern", ["--temp", "--seed", "--flash-*"])
def test_no_spelling_gets_around_the_list(args: tuple[str, ...], pattern: str) -> None:
    allowed = ("--temp", pattern)
    error = refusal(replica(args=args), allow_args=allowed)

    assert error.where == "args"
    assert "not allowed" in error.what or "decided by the agent" in error.what


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP"),
        *("PYTHONHOME", "PATH", "BASH_ENV", "ENV", "GCONV_PATH"),
    ],
)
@pytest.mark.parametrize("pattern", ["*", "L*", "P*", "?*", "[A-Z]*"])
def test_no_pattern_reaches_what_loads_code(name: str, pattern: str) -> None:
    error = refusal(replica(env={name: "../x"}), allow_env=(pattern,))

    assert error.where == "env"
    assert name in error.what


@pytest.mark.parametrize("build", ["../x", "/tmp/x", "b1/../../x", ".builds/x"])
def test_a_build_is_a_name_and_no_path(build: str) -> None:
    """A control plane names what was surveyed; a path is no such name."""
    settings = keys.Engines(command=keys.Command(enabled=True, path="/opt/x"))
    found = survey(Path("/nowhere"), settings, search_path="").builds
    wanted = replica(engine="command", build=build)

    with pytest.raises(EngineError, match="there is no build"):
        choose(found, wanted)


@pytest.mark.parametrize("name", ["-1", "-0.5", "-"])
def test_a_number_below_zero_is_a_value_and_no_option(name: str) -> None:
    settings = keys.Engines(llamacpp=keys.LlamaCpp(allow_args=("--seed",)))

    assert engines.admit(replica(args=("--seed", name)), settings)


def test_an_argument_that_belongs_to_no_option_is_refused() -> None:
    error = refusal(replica(args=("/etc/shadow",)), allow_args=("--seed",))

    assert "'/etc/shadow' belongs to no option" in error.what


def test_a_variable_needs_the_file_and_what_loads_code_its_full_name() -> None:
    error = refusal(replica(env={"GGML_X": "1"}))
    assert error.what == "the variable GGML_X is not allowed on this node"

    error = refusal(replica(env={"LD_PRELOAD": "/tmp/x.so"}), allow_env=("*",))
    assert error.what == "the variable LD_PRELOAD is not allowed on this node"

    named = keys.Engines(llamacpp=keys.LlamaCpp(allow_env=("LD_PRELOAD", "GGML_*")))
    assert engines.admit(replica(env={"LD_PRELOAD": "x", "GGML_X": "1"}), named)
