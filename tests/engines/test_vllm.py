"""vLLM on one node and on several: what is executed, word by word."""

import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits, Probe
from llmgw.wire import Lora, Model, Replica
from tests.engines.places import member, place, replica

BUILD = Build(name="v", engine="vllm", binary="/opt/v/bin/vllm", digest="sha256:b1")
HERE = place(
    settings=keys.Vllm(),
    build=BUILD,
    ports={"api": 20000, "internal": 20001},
    gpus={"GPU-1": 4, "GPU-2": 5},
    hcas=("mlx5_0", "mlx5_1:2"),
    weights={"hf://org/qwen": "/w/qwen", "hf://org/style@main": "/w/style"},
)
HEALTH = Health(
    path="/health",
    metrics_path="/metrics",
    progress_metrics=("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    requests_metric="vllm:num_requests_running",
    probe=Probe(path="/v1/completions", body='{"prompt":"a","max_tokens":1}'),
)
ENV = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "4,5",
    "NCCL_SOCKET_IFNAME": "=bond0",
    "GLOO_SOCKET_IFNAME": "bond0",
    "TP_SOCKET_IFNAME": "bond0",
    "UCX_NET_DEVICES": "bond0",
    "VLLM_HOST_IP": "10.0.0.7",
    "VLLM_PORT": "20001",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}
ENV_OF_GROUP = ENV | {
    "NCCL_IB_HCA": "=mlx5_0,mlx5_1:2",
    "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:2",
}


def wanted(**changes: object) -> Replica:
    model = Model(name="qwen", source="hf://org/qwen")
    fields = {"engine": "vllm", "model": model, "gpus": ("GPU-1", "GPU-2")}
    return replica(**fields | changes)


def other_node(**changes: object) -> Place:
    return place(HERE, host="10.0.0.8", ports={"internal": 20001}, **changes)


def test_on_one_node_the_model_is_split_by_tensors() -> None:
    """T27, T33: one address, one interface, by its exact name."""
    adapter = Lora(source="hf://org/style@main")
    asked = wanted(
        context=8192,
        parallel=16,
        memory=1 << 40,
        lora=(adapter,),
        args=("--kv-cache-dtype", "fp8"),
    )
    settings = keys.Vllm(
        args=("--disable-uvicorn-access-log",), allow_args=("--kv-cache-*",)
    )

    assert engines.launch(asked, place(HERE, settings=settings)) == Launch(
        argv=(
            *("/opt/v/bin/vllm", "serve", "/w/qwen"),
            *("--disable-uvicorn-access-log", "--kv-cache-dtype", "fp8"),
            *("--served-model-name", "qwen"),
            *("--max-model-len", "8192", "--max-num-seqs", "16"),
            *("--enable-lora", "--lora-modules", "style=/w/style"),
            *("--tensor-parallel-size", "2"),
            *("--host", "10.0.0.7", "--port", "20000"),
        ),
        env=ENV,
        host="10.0.0.7",
        ports={"api": 20000, "internal": 20001},
        health=HEALTH,
        limits=Limits(memory=1 << 40, memlock_unlimited=True),
    )


def test_across_nodes_by_its_own_launcher() -> None:
    """T30, T31, T33: head, bind and store on one address; all variables together."""
    head = engines.launch(wanted(group=member(0)), HERE)
    assert head.argv == (
        *("/opt/v/bin/vllm", "serve", "/w/qwen", "--served-model-name", "qwen"),
        *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", "2", "--node-rank", "0"),
        *("--master-addr", "10.0.0.7", "--master-port", "29500"),
        *("--host", "10.0.0.7", "--port", "20000"),
    )
    assert head.env == ENV_OF_GROUP
    assert head.health == HEALTH

    one = wanted(group=member(1))
    assert engines.ports(one) == ("internal",)
    assert engines.awaits(one) == (("10.0.0.7", 29500),)
    rest = engines.launch(one, other_node())
    assert rest.argv == (
        *("/opt/v/bin/vllm", "serve", "/w/qwen", "--served-model-name", "qwen"),
        *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
        *("--distributed-executor-backend", "mp"),
        *("--nnodes", "2", "--node-rank", "1"),
        *("--master-addr", "10.0.0.7", "--master-port", "29500", "--headless"),
    )
    assert rest.env == ENV_OF_GROUP | {"VLLM_HOST_IP": "10.0.0.8"}
    assert rest.health is None
    assert rest.ports == {"internal": 20001}


def test_across_nodes_on_ray_where_the_build_has_it() -> None:
    """T30: Ray's node address is the management address too."""
    build = Build(
        name="v",
        engine="vllm",
        binary="/opt/v/bin/vllm",
        digest="sha256:b1",
        features=("ray",),
    )

    head = engines.launch(wanted(group=member(0)), place(HERE, build=build))
    assert head.argv[:2] == ("/bin/sh", "-c")
    assert head.argv[3:] == (
        *("ray-head", "/opt/v/bin/ray", "10.0.0.7", "29500"),
        *("/opt/v/bin/vllm", "serve", "/w/qwen", "--served-model-name", "qwen"),
        *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
        *("--distributed-executor-backend", "ray"),
        *("--host", "10.0.0.7", "--port", "20000"),
    )
    rest = engines.launch(wanted(group=member(1)), other_node(build=build))
    assert rest.argv == (
        *("/opt/v/bin/ray", "start", "--address", "10.0.0.7:29500"),
        *("--node-ip-address", "10.0.0.8", "--disable-usage-stats", "--block"),
    )


def test_gpus_that_have_no_known_number_go_by_uuid_all_of_them() -> None:
    """T82: a MIG slice has no number."""
    launch = engines.launch(wanted(gpus=("GPU-1", "MIG-7")), HERE)

    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-1,MIG-7"


def test_an_embedding_model() -> None:
    assert "--runner pooling" in " ".join(
        engines.launch(wanted(embeddings=True), HERE).argv
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mmproj": Model(name="eyes", source="x")}, "takes no projector"),
        (
            {"lora": (Lora(source="hf://org/style@main", scale=0.5),)},
            "does not scale adapters",
        ),
        ({"args": ("--tensor-parallel-size", "8")}, "decided by the agent"),
        ({"args": ("--tensor_parallel_size=8",)}, "decided by the agent"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, object], what: str) -> None:
    settings = keys.Vllm(allow_args=("*",))

    with pytest.raises(EngineError, match=what):
        engines.launch(wanted(**changes), place(HERE, settings=settings))
