"""SGLang: `sglang serve`, on one node or, by its own launcher, on several."""

from llmgw.engines import group
from llmgw.engines.gpus import visible
from llmgw.engines.place import Place, name_of
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits, Probe
from llmgw.wire import Group, Replica

RESERVED = frozenset(
    """
    --host --port --model-path --model --served-model-name --context-length
    --max-running-requests --enable-metrics --is-embedding --enable-lora --lora-paths
    --tp-size --tp --tensor-parallel-size --pp-size --pp --pipeline-parallel-size
    --nnodes --node-rank --dist-init-addr --nccl-init-addr --nccl-port --config
    """.split()  # noqa: SIM905 -- a line for each kind, not for each word
)

_HEALTH = Health(
    path="/health",
    metrics_path="/metrics",
    # The second counts when a request ends; the first, every few steps of one.
    progress_metrics=("sglang:realtime_tokens_total", "sglang:generation_tokens_total"),
    requests_metric="sglang:num_running_reqs",
    probe=Probe(
        path="/generate", body='{"text":"a","sampling_params":{"max_new_tokens":1}}'
    ),
)

_MEMBER = Health(path="/health", port="health")


def ports(replica: Replica) -> tuple[str, ...]:
    """`nccl` is where the ranks of one node meet; a member serves only its health."""
    return ("health" if group.is_member(replica) else "api", "nccl")


def port(replica: Replica) -> int | None:
    """The port that was asked for; None: any that is free."""
    return None if group.is_member(replica) else replica.port


def awaits(replica: Replica) -> tuple[group.Address, ...]:
    """A member finds the head's store there, or gives up within its patience."""
    if replica.group is None or not group.is_member(replica):
        return ()
    return ((replica.group.head, replica.group.port),)


def launch(replica: Replica, place: Place) -> Launch:
    """`sglang serve`; with a Python as binary, its module."""
    spans = group.check(replica, place)
    workers = max(1, len(replica.gpus))
    return Launch(
        argv=(
            *_program(place.build.binary),
            *place.settings.args,
            *replica.args,
            *_model(replica, place),
            *_parallel(replica, spans),
            *("--nccl-port", str(place.ports["nccl"])),
            *("--host", place.host, "--port", str(place.ports[ports(replica)[0]])),
            "--enable-metrics",
        ),
        env={
            **visible(replica, place),
            **group.network(spans, place),
            "SGLANG_HOST_IP": place.host,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(max(1, place.threads // workers)),
            **place.settings.env,
            **replica.env,
        },
        host=place.host,
        ports={name: place.ports[name] for name in ports(replica)},
        health=_MEMBER if group.is_member(replica) else _HEALTH,
        limits=Limits(
            memory=replica.memory,
            cpus=replica.cpus,
            cpuset=place.cpuset,
            memlock_unlimited=bool(place.hcas),
        ),
    )


def _program(binary: str) -> tuple[str, ...]:
    if binary.rpartition("/")[2].startswith("python"):
        return (binary, "-m", "sglang.launch_server")
    return (binary, "serve")


def _model(replica: Replica, place: Place) -> tuple[str, ...]:
    if replica.mmproj is not None:
        raise EngineError(
            "SGLang takes no projector of its own: it is part of the model's files",
            where="mmproj",
        )
    args = ["--model-path", place.weights_of(replica.model)]
    if replica.model is not None:
        args += ["--served-model-name", replica.model.name]
    if replica.context is not None:
        args += ["--context-length", str(replica.context)]
    if replica.parallel is not None:
        args += ["--max-running-requests", str(replica.parallel)]
    if replica.embeddings:
        args += ["--is-embedding"]
    if replica.lora:
        args += ["--lora-paths"]
    for lora in replica.lora:
        if lora.scale != 1.0:
            raise EngineError("SGLang does not scale adapters", where="lora.scale")
        path = place.weights_at(lora.source, lora.source)
        args += [f"{name_of(lora.source)}={path}"]
    return tuple(args)


def _parallel(replica: Replica, spans: Group | None) -> tuple[str, ...]:
    """Tensor parallel over all ranks, as its own launcher divides the work."""
    here = max(1, len(replica.gpus))
    if spans is None:
        return ("--tp-size", str(here))
    return (
        *("--tp-size", str(here * spans.size)),
        *("--nnodes", str(spans.size), "--node-rank", str(spans.rank)),
        *("--dist-init-addr", group.head(spans)),
    )
