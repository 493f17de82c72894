"""How many CPU threads an engine gets, and on which CPUs. Always a number.

Engines that are left to guess take every hardware thread, or all cores of a machine of
which they may use a part; two of them then spin on each other's CPUs. Half of the CPUs
this process may use go to the engines, shared among the CPU replicas; the other half
is for their HTTP threads, tokenizers, and whoever else lives on the machine.
"""

from collections.abc import Sequence

from msgspec import Struct

from llmgw.wire import Replica


class Cpus(Struct, frozen=True, kw_only=True):
    """The CPUs this process may use.

    *allowed* are CPU numbers (the affinity mask), *quota* how many of them at a time
    (the cgroup's), None for all. *nodes* are the CPU numbers of each NUMA node.
    """

    allowed: tuple[int, ...]
    quota: float | None = None
    nodes: tuple[tuple[int, ...], ...] = ()

    @property
    def usable(self) -> int:
        """How many can work at a time; at least 1."""
        if self.quota is None:
            return max(1, len(self.allowed))
        return max(1, min(len(self.allowed), int(self.quota)))


class Threads(Struct, frozen=True, kw_only=True):
    """*cpuset* None: on any CPU that is allowed."""

    count: int
    cpuset: tuple[int, ...] | None = None


def share(
    cpus: Cpus,
    replicas: int,
    *,
    override: int | None = None,
    asked: float | None = None,
    taken: Sequence[tuple[int, ...]] = (),
) -> Threads:
    """The share of one of so many CPU *replicas*; never more than may be used.

    *override* is the node's file's word, *asked* what the replica says of itself (its
    cgroup then allows no more). *taken* are the cpusets that other replicas run on:
    the NUMA node with the fewest of them is kept together, if the threads fit on one.
    """
    count = max(1, cpus.usable // 2 // max(1, replicas))
    if override is not None:
        count = override
    if asked is not None:
        count = min(count, int(asked)) if override is not None else int(asked)
    count = max(1, min(count, cpus.usable))
    return Threads(count=count, cpuset=_node_for(count, cpus, taken))


def _node_for(
    count: int, cpus: Cpus, taken: Sequence[tuple[int, ...]]
) -> tuple[int, ...] | None:
    """The CPUs of the emptiest NUMA node on which *count* threads fit.

    Weights that are read across the link between two sockets come at half the speed.
    None on a machine with one node, and where none is large enough.
    """
    allowed = set(cpus.allowed)
    nodes = [tuple(sorted(allowed & set(node))) for node in cpus.nodes]
    nodes = [node for node in nodes if node]
    if len(nodes) < 2:
        return None
    fitting = [node for node in nodes if len(node) >= count]
    return min(
        fitting,
        key=lambda node: (sum(bool(set(node) & set(other)) for other in taken), node),
        default=None,
    )


def is_cpu_replica(replica: Replica) -> bool:
    """Whether it computes on CPUs, and so takes a share of them."""
    return replica.engine == "llamacpp" and not replica.gpus
