"""What every test gets."""

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.models.fixtures"]

# How long an example takes is the machine's matter, and the benchmarks'. Of itself it
# sees that only where CI=true is set.
settings.register_profile(
    "untimed",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


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
