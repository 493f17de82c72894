"""Threads are a number, a share of what may be used, and never more than that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.engines.threads import Cpus, Threads, is_cpu_replica, share
from tests.engines.places import replica

EIGHT = Cpus(allowed=tuple(range(8)))
TWO_SOCKETS = Cpus(
    allowed=tuple(range(16)), nodes=(tuple(range(8)), tuple(range(8, 16)))
)


@pytest.mark.parametrize(
    ("replicas", "count"), [(0, 4), (1, 4), (2, 2), (3, 1), (4, 1), (50, 1)]
)
def test_half_of_what_may_be_used_is_shared(replicas: int, count: int) -> None:
    """T86: 8 of a machine's 64 CPUs are allowed, so the share is of 8."""
    assert share(EIGHT, replicas) == Threads(count=count)


def test_a_cgroup_quota_counts_like_missing_cpus() -> None:
    """T86."""
    assert share(Cpus(allowed=tuple(range(64)), quota=4.0), 1).count == 2
    assert share(Cpus(allowed=tuple(range(64)), quota=0.5), 1).count == 1
    assert share(Cpus(allowed=(0, 1), quota=64.0), 1).count == 1


def test_the_file_overrides_but_not_beyond_the_allowed_set() -> None:
    """T87: more threads than CPUs lock up."""
    assert share(EIGHT, 3, override=6).count == 6
    assert share(EIGHT, 3, override=64).count == 8


def test_a_replica_that_says_its_cpus_gets_as_many_threads() -> None:
    assert share(EIGHT, 3, asked=5.5).count == 5
    assert share(EIGHT, 1, asked=0.5).count == 1
    assert share(EIGHT, 1, asked=64).count == 8
    assert share(EIGHT, 1, asked=2, override=6).count == 2


def test_threads_that_fit_stay_on_one_numa_node_and_replicas_spread() -> None:
    first = share(TWO_SOCKETS, 1)
    assert first == Threads(count=8, cpuset=tuple(range(8)))

    second = share(TWO_SOCKETS, 2, taken=[tuple(range(8))])
    assert second == Threads(count=4, cpuset=tuple(range(8, 16)))

    assert share(TWO_SOCKETS, 1, override=9) == Threads(count=9)


def test_a_numa_node_counts_only_with_the_cpus_that_are_allowed() -> None:
    part = Cpus(allowed=(0, *range(8, 16)), nodes=TWO_SOCKETS.nodes)

    assert share(part, 1) == Threads(count=4, cpuset=tuple(range(8, 16)))
    only_one = Cpus(allowed=tuple(range(8)), nodes=TWO_SOCKETS.nodes)
    assert share(only_one, 1) == Threads(count=4)


def test_only_llama_without_gpus_computes_on_cpus() -> None:
    assert is_cpu_replica(replica())
    assert not is_cpu_replica(replica(gpus=("GPU-1",)))
    assert not is_cpu_replica(replica(engine="vllm"))


@given(
    st.sets(st.integers(0, 63), min_size=1),
    st.none() | st.floats(0.1, 128),
    st.integers(0, 100),
    st.none() | st.integers(1, 200),
    st.none() | st.floats(0.1, 200),
)
def test_never_zero_and_never_above_the_allowed_set(
    allowed: set[int],
    quota: float | None,
    replicas: int,
    override: int | None,
    asked: float | None,
) -> None:
    """T87."""
    nodes = (tuple(range(32)), tuple(range(32, 64)))
    cpus = Cpus(allowed=tuple(sorted(allowed)), quota=quota, nodes=nodes)

    given_threads = share(cpus, replicas, override=override, asked=asked)

    assert 1 <= given_threads.count <= len(allowed)
    if quota is not None:
        assert given_threads.count <= max(1, quota)
    if given_threads.cpuset is not None:
        assert set(given_threads.cpuset) <= allowed
        assert given_threads.count <= len(given_threads.cpuset)
