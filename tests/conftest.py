"""What every test gets."""

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

pytest_plugins = ["tests.models.fixtures"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _the_loop_never_blocks() -> Iterator[BlockBuster]:
    """A test of ours that blocks the event loop fails (llmgw's code only)."""
    with blockbuster_ctx("llmgw") as guard:
        # anyio looks at a unix socket's path once, before it listens there.
        guard.functions["os.stat"].can_block_in(
            "anyio/_core/_sockets.py", "setup_unix_local_socket"
        )
        yield guard
