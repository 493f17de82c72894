"""llama.cpp: llama-server, and rpc-server for the members of a group."""

from llmgw.engines import group
from llmgw.engines.gpus import visible
from llmgw.engines.place import Place, authority
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits, Probe
from llmgw.wire import Replica

# What this module writes itself. llama-server takes the last of two, so that a second
# --host would open the engine to a network it was not meant for.
RESERVED = frozenset(
    """
    --host --port --reuse-port --api-prefix --path --offline --metrics --slots
    --no-slots --log-file --log-disable --models-dir --models-preset
    -m --model -mu --model-url -hf -hfr --hf-repo -dr --docker-repo -a --alias
    -mm --mmproj -mmu --mmproj-url --lora --lora-scaled --embedding --embeddings
    -t --threads -tb --threads-batch -c --ctx-size -np --parallel
    -dev --device --rpc
    """.split()  # noqa: SIM905 -- a line for each kind, not for each word
)


def ports(replica: Replica) -> tuple[str, ...]:
    """The names of the ports that this replica needs."""
    return ("rpc",) if group.is_member(replica) else ("api",)


def port(replica: Replica) -> int | None:
    """The port that was agreed on for the first of them; None: any that is free.

    A member has to listen where the head was told to look.
    """
    if replica.group is not None and group.is_member(replica):
        return group.members(replica.group)[replica.group.rank][1]
    return replica.port


def awaits(replica: Replica) -> tuple[group.Address, ...]:
    """Who has to accept connections before this one is launched."""
    if replica.group is None or group.is_member(replica):
        return ()
    return group.members(replica.group)[1:]


def launch(replica: Replica, place: Place) -> Launch:
    """llama-server with every number said: what it guesses is meant for a laptop."""
    if group.check(replica, place) is not None and group.is_member(replica):
        return _rpc_server(replica, place)
    settings = place.settings
    return Launch(
        argv=(
            place.build.binary,
            *settings.args,
            *replica.args,
            *_model(replica, place),
            *_capacity(replica, place),
            *_members(replica),
            "--host",
            place.host,
            "--port",
            str(place.ports["api"]),
            "--metrics",
            "--offline",
        ),
        env={**visible(replica, place), **settings.env, **replica.env},
        host=place.host,
        ports={"api": place.ports["api"]},
        health=Health(
            path="/health",
            metrics_path="/metrics",
            # The counters of tokens stand still until a request ends; a long answer
            # shows only here that it goes on.
            progress_metrics=("llamacpp:n_decode_total",),
            requests_metric="llamacpp:requests_processing",
            probe=Probe(path="/completion", body='{"prompt":"a","n_predict":1}'),
        ),
        limits=_limits(replica, place),
    )


def _rpc_server(replica: Replica, place: Place) -> Launch:
    """A member lends its devices to the head, which loads the model into them.

    The node's args and env are llama-server's; rpc-server has its own few.
    """
    if place.build.rpc_binary is None:
        raise EngineError(
            f"the build {place.build.name} has no rpc-server", where="build"
        )
    group.refuse_open(place.host, "rpc-server")
    return Launch(
        argv=(
            place.build.rpc_binary,
            *("--host", place.host, "--port", str(place.ports["rpc"])),
            *("--threads", str(place.threads)),
        ),
        env=visible(replica, place),
        host=place.host,
        ports={"rpc": place.ports["rpc"]},
        limits=_limits(replica, place),
    )


def _members(replica: Replica) -> tuple[str, ...]:
    others = [authority(*address) for address in awaits(replica)]
    return ("--rpc", ",".join(others)) if others else ()


def _limits(replica: Replica, place: Place) -> Limits:
    return Limits(memory=replica.memory, cpus=replica.cpus, cpuset=place.cpuset)


def _model(replica: Replica, place: Place) -> tuple[str, ...]:
    args = ["--model", place.weights_of(replica.model)]
    if replica.model is not None:
        args += ["--alias", replica.model.name]
    if replica.mmproj is not None:
        args += ["--mmproj", place.weights_of(replica.mmproj)]
    for lora in replica.lora:
        path = place.weights_at(lora.source, lora.source)
        args += ["--lora-scaled", f"{path}:{lora.scale:g}"]
    if replica.embeddings:
        args += ["--embeddings"]
    return tuple(args)


def _capacity(replica: Replica, place: Place) -> tuple[str, ...]:
    threads = str(place.threads)
    args = ["--threads", threads, "--threads-batch", threads]
    slots = replica.parallel or 1
    if replica.context is not None:
        # llama-server divides its context among the slots; a replica's context is
        # what one request may have, as with the other engines.
        args += ["--ctx-size", str(replica.context * slots)]
    if replica.parallel is not None:
        args += ["--parallel", str(slots)]
    if not replica.gpus and replica.group is None:
        # With "none", a head would not use its members' devices either.
        args += ["--device", "none"]
    return tuple(args)
