"""SGLang on one node and on several: what is executed, word by word."""

import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.place import Build
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Probe
from llmgw.wire import Lora, Model, Replica
from tests.engines.places import member, place, replica

BUILD = Build(name="s", engine="sglang", binary="/opt/s/bin/sglang", digest="sha256:b1")
HERE = place(
    settings=keys.Sglang(),
    build=BUILD,
    ports={"api": 20000, "nccl": 20001},
    gpus={"GPU-1": 0, "GPU-2": 1},
    hcas=("mlx5_0",),
    weights={"hf://org/qwen": "/w/qwen", "hf://org/style": "/w/style"},
)
HEALTH = Health(
    path="/health",
    metrics_path="/metrics",
    progress_metrics=("sglang:realtime_tokens_total", "sglang:generation_tokens_total"),
    requests_metric="sglang:num_running_reqs",
    probe=Probe(
        path="/generate", body='{"text":"a","sampling_params":{"max_new_tokens":1}}'
    ),
)
ENV = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "NCCL_SOCKET_IFNAME": "=bond0",
    "GLOO_SOCKET_IFNAME": "bond0",
    "TP_SOCKET_IFNAME": "bond0",
    "UCX_NET_DEVICES": "bond0",
    "SGLANG_HOST_IP": "10.0.0.7",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}


def wanted(**changes: object) -> Replica:
    model = Model(name="qwen", source="hf://org/qwen")
    fields = {"engine": "sglang", "model": model, "gpus": ("GPU-1", "GPU-2")}
    return replica(**fields | changes)


def test_on_one_node() -> None:
    asked = wanted(context=8192, parallel=16, lora=(Lora(source="hf://org/style"),))

    launch = engines.launch(asked, HERE)
    assert launch.argv == (
        *("/opt/s/bin/sglang", "serve", "--model-path", "/w/qwen"),
        *("--served-model-name", "qwen"),
        *("--context-length", "8192", "--max-running-requests", "16"),
        *("--lora-paths", "style=/w/style", "--tp-size", "2"),
        *("--nccl-port", "20001", "--host", "10.0.0.7", "--port", "20000"),
        "--enable-metrics",
    )
    assert launch.env == ENV
    assert launch.health == HEALTH


def test_across_nodes() -> None:
    """T30, T31, T33."""
    head = engines.launch(wanted(group=member(0)), HERE)
    assert head.argv == (
        *("/opt/s/bin/sglang", "serve", "--model-path", "/w/qwen"),
        *("--served-model-name", "qwen"),
        *("--tp-size", "4", "--nnodes", "2", "--node-rank", "0"),
        *("--dist-init-addr", "10.0.0.7:29500"),
        *("--nccl-port", "20001", "--host", "10.0.0.7", "--port", "20000"),
        "--enable-metrics",
    )
    fabric = {"NCCL_IB_HCA": "=mlx5_0", "UCX_NET_DEVICES": "mlx5_0:1"}
    assert head.env == ENV | fabric

    one = wanted(group=member(1))
    assert engines.ports(one) == ("health", "nccl")
    assert engines.awaits(one) == (("10.0.0.7", 29500),)
    ports = {"health": 20002, "nccl": 20001}
    rest = engines.launch(one, place(HERE, host="10.0.0.8", ports=ports))
    assert rest == Launch(
        argv=(
            *("/opt/s/bin/sglang", "serve", "--model-path", "/w/qwen"),
            *("--served-model-name", "qwen"),
            *("--tp-size", "4", "--nnodes", "2", "--node-rank", "1"),
            *("--dist-init-addr", "10.0.0.7:29500"),
            *("--nccl-port", "20001", "--host", "10.0.0.8", "--port", "20002"),
            "--enable-metrics",
        ),
        env=ENV | fabric | {"SGLANG_HOST_IP": "10.0.0.8"},
        host="10.0.0.8",
        ports=ports,
        health=Health(path="/health", port="health"),
        limits=head.limits,
    )


def test_a_head_with_an_ipv6_address_stands_in_brackets() -> None:
    """T28, T29."""
    spans = member(0, head="fd00::7")

    launch = engines.launch(wanted(group=spans), place(HERE, host="fd00::7"))

    assert "--dist-init-addr [fd00::7]:29500" in " ".join(launch.argv)


def test_a_python_as_binary_runs_its_module() -> None:
    build = Build(
        name="s", engine="sglang", binary="/opt/s/bin/python3", digest="sha256:b1"
    )
    launch = engines.launch(wanted(embeddings=True), place(HERE, build=build))

    assert launch.argv[:3] == ("/opt/s/bin/python3", "-m", "sglang.launch_server")
    assert "--is-embedding" in launch.argv


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(EngineError, match="takes no projector"):
        engines.launch(wanted(mmproj=Model(name="eyes", source="x")), HERE)
    half = Lora(source="hf://org/style", scale=0.5)
    with pytest.raises(EngineError, match="does not scale adapters"):
        engines.launch(wanted(lora=(half,)), HERE)
