"""A node and the network beyond it."""

from collections.abc import Generator

import pytest

from tests.fakes.hosts import Host, hosts, need_namespaces


@pytest.fixture
def namespaces() -> None:
    need_namespaces()


@pytest.fixture
def wired(namespaces: None) -> Generator[tuple[Host, Host]]:
    """A node on 10.77.0.9 and control planes on 10.77.0.1 and .2."""
    with hosts("mgmt0") as (node, beyond):
        node.ip("address add 10.77.0.9/24 dev mgmt0")
        for last in (1, 2):
            beyond.ip(f"address add 10.77.0.{last}/24 dev mgmt0")
        yield node, beyond
