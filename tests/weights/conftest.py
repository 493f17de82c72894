"""What the tests of the weights share: a server, a folder, and one who asks."""

import contextlib
import random
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import anyio
import pytest

from llmgw.config import keys
from llmgw.weights.fetch import Weights
from tests.fakes import disks
from tests.fakes.weights_server import WeightsServer

MIB = 1024 * 1024


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no two offsets of which are mistaken for each other."""
    return random.Random(seed).randbytes(size)


@pytest.fixture
def server() -> Iterator[WeightsServer]:
    with WeightsServer() as running:
        yield running


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, in memory."""
    with disks.small(tmp_path / "small", 24) as folder:
        yield folder


@contextlib.asynccontextmanager
async def asking(
    cache: Path, settings: keys.Weights | None = None, *model_dirs: Path
) -> AsyncGenerator[Weights]:
    """Weights with their process running, for as long as the block lasts."""
    weights = Weights(settings or keys.Weights(), cache, model_dirs)
    async with anyio.create_task_group() as group:
        await group.start(weights.run)
        yield weights
        group.cancel_scope.cancel()
