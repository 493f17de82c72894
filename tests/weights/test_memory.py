"""However large the file, the process that fetches it stays small."""

import resource
from pathlib import Path

from llmgw.config import keys
from llmgw.weights.order import Done
from tests.fakes.hub import FakeHub
from tests.weights.conftest import MIB, noise
from tests.weights.process import FetchProcess


def peak_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def starved() -> None:
    """512 MiB of memory that is its own, stacks of its threads included."""
    resource.setrlimit(resource.RLIMIT_DATA, (512 * MIB, 512 * MIB))


def test_150_mib_are_enough_for_a_repository_larger_than_that(tmp_path: Path) -> None:
    """T75: with huggingface_hub loaded and sixteen connections, under a limit."""
    files = {f"model-{n}.safetensors": noise(40 * MIB, n) for n in range(5)}
    with FakeHub() as hub:
        hub.add("owner/name", files)
        settings = keys.Weights(hf_endpoint=hub.url, connections=16)
        with FetchProcess(tmp_path, settings, limit=starved) as process:
            process.ask("hf://owner/name")
            ended = process.ended()
            peak = peak_mib(process.pid)

    assert isinstance(ended, Done)
    assert peak <= 150
