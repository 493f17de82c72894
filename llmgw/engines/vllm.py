"""vLLM: `vllm serve`, on one node or, by its own launcher or Ray, on several.

Inside a node the model is split by tensors, across nodes by layers: a step of tensor
parallelism waits for the slowest link in it, many times a token.
"""

from pathlib import Path

from llmgw.engines import group
from llmgw.engines.gpus import visible
from llmgw.engines.place import Place, name_of
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits, Probe
from llmgw.wire import Group, Replica

RESERVED = frozenset(
    """
    --host --port --uds --headless --root-path --model --served-model-name
    --max-model-len --max-num-seqs --enable-lora --lora-modules --runner --task
    --tensor-parallel-size -tp --pipeline-parallel-size -pp
    --distributed-executor-backend --nnodes -n --node-rank -r --master-addr
    --master-port --config
    """.split()  # noqa: SIM905 -- a line for each kind, not for each word
)

# Ray's head runs beside vLLM in the same cgroup, and ends with it.
_RAY_HEAD = """
"$1" start --head --node-ip-address="$2" --port="$3" --disable-usage-stats || exit
shift 3
exec "$@"
"""


def ports(replica: Replica) -> tuple[str, ...]:
    """`internal` is where vLLM begins to look for its own ports."""
    return ("internal",) if group.is_member(replica) else ("api", "internal")


def port(replica: Replica) -> int | None:
    """The port that was asked for; None: any that is free."""
    return None if group.is_member(replica) else replica.port


def awaits(replica: Replica) -> tuple[group.Address, ...]:
    """A member finds the head's store or Ray there, or gives up within its patience."""
    if replica.group is None or not group.is_member(replica):
        return ()
    return ((replica.group.head, replica.group.port),)


def launch(replica: Replica, place: Place) -> Launch:
    """`vllm serve` with the model's files as they lie here; nothing is downloaded."""
    spans = group.check(replica, place)
    on_ray = spans is not None and "ray" in place.build.features
    serve = (
        place.build.binary,
        "serve",
        place.weights_of(replica.model),
        *place.settings.args,
        *replica.args,
        *_model(replica, place),
        *_parallel(replica, spans, on_ray=on_ray),
    )
    if spans is None or spans.rank == 0:
        serve += ("--host", place.host, "--port", str(place.ports["api"]))
    return Launch(
        argv=_with_ray(serve, spans, place) if spans and on_ray else serve,
        env={
            **_environment(replica, spans, place),
            **place.settings.env,
            **replica.env,
        },
        host=place.host,
        ports={name: place.ports[name] for name in ports(replica)},
        health=None if group.is_member(replica) else _HEALTH,
        limits=Limits(
            memory=replica.memory,
            cpus=replica.cpus,
            cpuset=place.cpuset,
            memlock_unlimited=bool(place.hcas),
        ),
    )


_HEALTH = Health(
    path="/health",
    metrics_path="/metrics",
    progress_metrics=("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    requests_metric="vllm:num_requests_running",
    probe=Probe(path="/v1/completions", body='{"prompt":"a","max_tokens":1}'),
)


def _model(replica: Replica, place: Place) -> tuple[str, ...]:
    if replica.mmproj is not None:
        raise EngineError(
            "vLLM takes no projector of its own: it is part of the model's files",
            where="mmproj",
        )
    args: list[str] = []
    if replica.model is not None:
        args += ["--served-model-name", replica.model.name]
    if replica.context is not None:
        args += ["--max-model-len", str(replica.context)]
    if replica.parallel is not None:
        args += ["--max-num-seqs", str(replica.parallel)]
    if replica.embeddings:
        args += ["--runner", "pooling"]
    if replica.lora:
        args += ["--enable-lora", "--lora-modules"]
    for lora in replica.lora:
        if lora.scale != 1.0:
            raise EngineError("vLLM does not scale adapters", where="lora.scale")
        path = place.weights_at(lora.source, lora.source)
        args += [f"{name_of(lora.source)}={path}"]
    return tuple(args)


def _parallel(
    replica: Replica, spans: Group | None, *, on_ray: bool
) -> tuple[str, ...]:
    args = ["--tensor-parallel-size", str(max(1, len(replica.gpus)))]
    if spans is None:
        return tuple(args)
    args += ["--pipeline-parallel-size", str(spans.size)]
    if on_ray:
        return (*args, "--distributed-executor-backend", "ray")
    args += ["--distributed-executor-backend", "mp"]
    args += ["--nnodes", str(spans.size), "--node-rank", str(spans.rank)]
    args += ["--master-addr", spans.head, "--master-port", str(spans.port)]
    return (*args, "--headless") if spans.rank else tuple(args)


def _with_ray(serve: tuple[str, ...], spans: Group, place: Place) -> tuple[str, ...]:
    """The head starts Ray and then serves; a member is nothing but Ray."""
    ray = str(Path(place.build.binary).with_name("ray"))
    if spans.rank == 0:
        where = (place.host, str(spans.port))
        return ("/bin/sh", "-c", _RAY_HEAD, "ray-head", ray, *where, *serve)
    return (
        *(ray, "start", "--address", group.head(spans)),
        *("--node-ip-address", place.host, "--disable-usage-stats", "--block"),
    )


def _environment(replica: Replica, spans: Group | None, place: Place) -> dict[str, str]:
    workers = max(1, len(replica.gpus))
    return {
        **visible(replica, place),
        **group.network(spans, place),
        "VLLM_HOST_IP": place.host,
        "VLLM_PORT": str(place.ports["internal"]),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, place.threads // workers)),
    }
