"""A real llama-server and a model for it."""

from pathlib import Path

import pytest

from llmgw.engines.place import Build
from tests.models import pinned


@pytest.fixture(scope="session")
def llama() -> Build:
    try:
        return pinned.llama()
    except pinned.NotToBeHad as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.models import tiny_gguf  # numpy takes a while, and few tests want it

    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny_gguf.write(path)
    return path
