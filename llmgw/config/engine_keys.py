"""The keys of engines and of the supervisor that keeps them running."""

from typing import Annotated, Literal

from msgspec import field

from llmgw.config.describe import Duration, Path, Section, Size, key


class Engine(Section, frozen=True, kw_only=True):
    """What can be said of every kind of engine."""

    enabled: Annotated[bool, key("Whether this node runs it.")] = True
    path: Annotated[
        Path | None,
        key(
            "The program to run. Unset: the build under engines_dir, then PATH.",
            example="/opt/llmgw/bin/engine",
            kind="path",
        ),
    ] = None
    args: Annotated[
        tuple[str, ...],
        key("Arguments of every start, before the replica's own.", example=["--mlock"]),
    ] = ()
    env: Annotated[
        dict[str, str],
        key(
            "Environment variables of every start.",
            example={"HF_HUB_OFFLINE": "1"},
            kind="env",
        ),
    ] = field(default_factory=dict[str, str])
    allow_args: Annotated[
        tuple[str, ...],
        key(
            "Arguments that a replica may set, as names with their dashes; * stands "
            "for any letters.",
            example=["--temp"],
            kind="name",
        ),
    ] = ()
    allow_env: Annotated[
        tuple[str, ...],
        key(
            "Environment variables that a replica may set; * stands for any letters.",
            example=["HF_HUB_OFFLINE"],
            kind="name",
        ),
    ] = ()


class LlamaCpp(Engine, frozen=True, kw_only=True):
    """llama-server of llama.cpp."""

    threads: Annotated[
        int | None,
        key(
            "CPU threads of one replica. Unset: half the CPUs this process may use, "
            "shared among the replicas that run on CPUs.",
            example=8,
            low=1,
            high=4096,
            live=True,
        ),
    ] = None


class Vllm(Engine, frozen=True, kw_only=True):
    """vLLM's OpenAI-compatible server."""


class Sglang(Engine, frozen=True, kw_only=True):
    """SGLang's server."""


class Command(Engine, frozen=True, kw_only=True):
    """Any other server, by its command line."""

    enabled: Annotated[
        bool,
        key("Whether this node runs it: the program that path names, and no other."),
    ] = False


class Engines(Section, frozen=True, kw_only=True):
    """The programs that serve models, by kind."""

    llamacpp: Annotated[LlamaCpp, key("llama-server of llama.cpp.")] = LlamaCpp()
    vllm: Annotated[Vllm, key("vLLM's OpenAI-compatible server.")] = Vllm()
    sglang: Annotated[Sglang, key("SGLang's server.")] = Sglang()
    command: Annotated[Command, key("Any other server.")] = Command()


class Supervisor(Section, frozen=True, kw_only=True):
    """How engines are kept running."""

    backend: Annotated[
        Literal["auto", "process", "systemd"],
        key(
            "Who holds the processes: the agent, or systemd with a unit for each "
            "engine. auto: the agent, where its own unit delegates a cgroup tree; "
            "else systemd, where its template unit is installed; else the agent."
        ),
    ] = "auto"
    stop_grace: Annotated[Duration, key("Time between TERM and KILL.", low=0)] = 30.0
    restart_base: Annotated[
        Duration, key("Wait before an engine's first restart; it doubles.", low=0.01)
    ] = 1.0
    restart_max: Annotated[
        Duration, key("The longest wait between restarts.", low=0.01)
    ] = 60.0
    crash_loop_after: Annotated[
        int,
        key(
            "Crashes in a row after which a replica is called crash_loop; it is still "
            "retried, at restart_max.",
            low=1,
        ),
    ] = 5
    start_timeout: Annotated[
        Duration,
        key(
            "How long an engine may take to answer its health check while nothing in "
            "its loading moves.",
            low=1,
        ),
    ] = 600.0
    # Not the same as start_timeout: who gives a large model an hour to load does not
    # want an engine that hangs to be left alone for as long.
    stuck_after: Annotated[
        Duration,
        key(
            "How long an engine that served may show no sign of work, with requests "
            "running or no answer, before it is started again.",
            low=1,
        ),
    ] = 600.0
    probe_stuck: Annotated[
        bool,
        key(
            "Ask an engine for one token before it is taken for stuck, and where it "
            "has no counters that tell; it has stuck_after to give it."
        ),
    ] = False
    health_interval: Annotated[Duration, key("Time between checks.", low=0.1)] = 2.0
    health_timeout: Annotated[
        Duration, key("How long one health check may take.", low=0.1)
    ] = 5.0
    port_range: Annotated[
        str,
        key(
            "Ports given to engines, first and last.",
            pattern="[0-9]{1,5}-[0-9]{1,5}",
            kind="port_range",
        ),
    ] = "20000-20999"
    port_quarantine: Annotated[
        Duration, key("How long a port rests after use.", low=0)
    ] = 60.0
    log_max_bytes: Annotated[
        Size, key("An engine's log is rotated at this size.", low=4096)
    ] = 64 * 1024 * 1024
    log_keep: Annotated[
        int, key("Rotated logs that are kept of each engine.", low=0, high=1000)
    ] = 3
    on_stop: Annotated[
        Literal["leave", "stop"],
        key(
            "What becomes of engines when the agent stops: left serving for the next "
            "agent to adopt, or stopped."
        ),
    ] = "leave"
    disconnect_stop_after: Annotated[
        Duration | None,
        key(
            "Stop engines after so long without a control plane, where the replica "
            "does not say otherwise. Unset: never.",
            example="24h",
            low=1,
        ),
    ] = None
