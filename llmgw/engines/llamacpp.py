"""llama.cpp: llama-server, and rpc-server for the members of a group."""

from llmgw.engines.place import Place
from llmgw.supervisor.launch import Health, Launch, Limits
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
    return ("api",)


def launch(replica: Replica, place: Place) -> Launch:
    """llama-server with every number said: what it guesses is meant for a laptop."""
    settings = place.settings
    return Launch(
        argv=(
            place.build.binary,
            *settings.args,
            *replica.args,
            *_model(replica, place),
            *_capacity(replica, place),
            "--host",
            place.host,
            "--port",
            str(place.ports["api"]),
            "--metrics",
            "--offline",
        ),
        env={**_devices(replica), **settings.env, **replica.env},
        host=place.host,
        ports={"api": place.ports["api"]},
        health=Health(
            path="/health",
            metrics_path="/metrics",
            # The counters of tokens stand still until a request ends; a long answer
            # shows only here that it goes on.
            progress_metrics=("llamacpp:n_decode_total",),
            requests_metric="llamacpp:requests_processing",
        ),
        limits=Limits(memory=replica.memory, cpus=replica.cpus, cpuset=place.cpuset),
    )


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
    if not replica.gpus:
        args += ["--device", "none"]
    return tuple(args)


def _devices(replica: Replica) -> dict[str, str]:
    """Only the GPUs that were given; none at all for a CPU replica.

    A CUDA build opens a context on every card it sees, whatever --device says.
    """
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(replica.gpus),
    }
