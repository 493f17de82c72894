"""llama-server is told everything it would guess."""

import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits, Probe
from llmgw.wire import Lora, Model
from tests.engines.places import place, replica

HEALTH = Health(
    path="/health",
    metrics_path="/metrics",
    progress_metrics=("llamacpp:n_decode_total",),
    requests_metric="llamacpp:requests_processing",
    probe=Probe(path="/completion", body='{"prompt":"a","n_predict":1}'),
)


def test_a_cpu_replica() -> None:
    """T27: bound to and asked on one address. T86: the threads are a number."""
    assert engines.launch(replica(), place()) == Launch(
        argv=(
            "/opt/e/b1/bin/llama-server",
            *("--model", "/w/q.gguf", "--alias", "qwen"),
            *("--threads", "4", "--threads-batch", "4", "--device", "none"),
            *("--host", "10.0.0.7", "--port", "20000", "--metrics", "--offline"),
        ),
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""},
        host="10.0.0.7",
        ports={"api": 20000},
        health=HEALTH,
    )


def test_a_gpu_replica_with_all_that_can_be_asked() -> None:
    adapter = Lora(source="hf://org/lora/a.gguf", scale=0.5)
    projector = Model(name="eyes", source="hf://org/qwen/mmproj.gguf")
    wanted = replica(
        gpus=("GPU-1", "GPU-2"),
        cpus=2.5,
        memory=8 << 30,
        context=4096,
        parallel=2,
        mmproj=projector,
        lora=(adapter,),
        embeddings=True,
        args=("--flash-attn", "on"),
        env={"GGML_CUDA_GRAPHS": "0"},
    )
    settings = keys.LlamaCpp(
        args=("--no-webui",),
        env={"A": "1"},
        allow_args=("--flash-attn",),
        allow_env=("GGML_*",),
    )
    weights = {
        "hf://org/qwen/q.gguf": "/w/q.gguf",
        "hf://org/lora/a.gguf": "/w/a.gguf",
        "hf://org/qwen/mmproj.gguf": "/w/mmproj.gguf",
    }
    where = place(settings=settings, weights=weights, cpuset=(0, 1), host="fd00::2")

    assert engines.launch(wanted, where) == Launch(
        argv=(
            "/opt/e/b1/bin/llama-server",
            *("--no-webui", "--flash-attn", "on"),
            *("--model", "/w/q.gguf", "--alias", "qwen", "--mmproj", "/w/mmproj.gguf"),
            *("--lora-scaled", "/w/a.gguf:0.5", "--embeddings"),
            *("--threads", "4", "--threads-batch", "4"),
            *("--ctx-size", "8192", "--parallel", "2"),
            *("--host", "fd00::2", "--port", "20000", "--metrics", "--offline"),
        ),
        env={
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2",
            "A": "1",
            "GGML_CUDA_GRAPHS": "0",
        },
        host="fd00::2",
        ports={"api": 20000},
        health=HEALTH,
        limits=Limits(memory=8 << 30, cpus=2.5, cpuset=(0, 1)),
    )


def test_weights_that_are_not_there_are_named() -> None:
    with pytest.raises(EngineError, match=r"the weights of qwen are not on this node"):
        engines.launch(replica(), place(weights={}))
    with pytest.raises(EngineError, match=r"no model is named"):
        engines.launch(replica(model=None), place())
