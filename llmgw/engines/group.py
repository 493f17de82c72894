"""Engines that span nodes: one build, one head, one network, or not at all."""

import ipaddress
from collections.abc import Callable

import anyio

from llmgw.config.keys import Fabric
from llmgw.engines.place import Place, authority
from llmgw.errors import EngineError
from llmgw.wire import Group, Progress, Replica

Address = tuple[str, int]


def check(replica: Replica, place: Place) -> Group | None:
    """The replica's group; EngineError if it cannot work with what is *place*d here.

    Refused before anything is launched: what does not fit shows as a crash, or as a
    hang of all members, half an hour into the loading of weights.
    """
    group = replica.group
    if group is None:
        return None
    _check_rank(group)
    if group.rank == 0 and group.head != place.host:
        raise EngineError(
            f"the head is to be at {group.head}, and this node is at {place.host}",
            where="group.head",
            fix=f'set mgmt_addr = "{group.head}" in the node\'s file, if it has it',
        )
    if group.build_digest is None or group.build_digest != place.build.digest:
        raise EngineError(
            f"the build {place.build.name} here is {place.build.digest or 'unknown'}, "
            f"and the group runs {group.build_digest or 'no build in particular'}",
            where="group.build_digest",
            fix="llmgw engines install the same build on every node of the group",
        )
    return group


def is_member(replica: Replica) -> bool:
    """Whether it serves nobody but the head of its group."""
    return replica.group is not None and replica.group.rank > 0


def network(group: Group | None, place: Place) -> dict[str, str]:
    """One interface and one fabric for everything that opens sockets, all together.

    Where one of these is missing, that library picks an interface on its own: a bridge
    of a container runtime, an overlay, or lo. Without a group nothing leaves the node:
    there is no need of a fabric, and not to know the interface is no fault.
    """
    if group is None:
        return sockets(place)
    if place.interface is None:
        raise EngineError(
            f"the interface that holds {place.host} is not known",
            where="mgmt_interface",
            fix="set mgmt_interface in the node's file",
        )
    if group.fabric is not None and not place.hcas:
        raise EngineError(
            f"no adapter of this node is labelled with the fabric {group.fabric}",
            where="group.fabric",
            fix="name its HCAs under fabrics in the node's file",
        )
    env = sockets(place)
    if place.hcas:
        # "=" again: without it mlx5_1 is also mlx5_10.
        env["NCCL_IB_HCA"] = "=" + ",".join(place.hcas)
        env["UCX_NET_DEVICES"] = ",".join(
            hca if ":" in hca else f"{hca}:1" for hca in place.hcas
        )
    return env


def fabric_hcas(fabric: Fabric) -> tuple[str, ...]:
    """The adapters of a fabric as NCCL names them, with their ports if those count."""
    if fabric.ports is None:
        return fabric.hcas
    return tuple(f"{hca}:{port}" for hca in fabric.hcas for port in fabric.ports)


def sockets(place: Place) -> dict[str, str]:
    """The management interface, by its exact name; nothing where it is not known.

    NCCL takes a name for a prefix, so that bond0 is bond0.2093 too; "=" makes it exact.
    Never a list of exclusions: one that left out docker0 chose lo.
    """
    name = place.interface
    if name is None:
        return {}
    return {
        "NCCL_SOCKET_IFNAME": f"={name}",
        "GLOO_SOCKET_IFNAME": name,
        "TP_SOCKET_IFNAME": name,
        "UCX_NET_DEVICES": name,
    }


def members(group: Group) -> tuple[Address, ...]:
    """Where the members listen, by rank, and the group's own rank is one of them."""
    _check_rank(group)
    if len(group.members) != group.size:
        raise EngineError(
            f"{len(group.members)} members are named for a group of {group.size}",
            where="group.members",
        )
    return tuple(_address(member) for member in group.members)


def head(group: Group) -> str:
    return authority(group.head, group.port)


def refuse_open(host: str, program: str) -> None:
    """EngineError where *program*, which asks nobody who they are, would be reachable
    from outside of the cluster's own network.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified or address.is_global:
        raise EngineError(
            f"{program} lets anyone in, and {host} can be reached from anywhere",
            where="mgmt_addr",
            fix="set mgmt_addr in the node's file to a private address",
        )


def _check_rank(group: Group) -> None:
    if not 0 <= group.rank < group.size:
        raise EngineError(
            f"rank {group.rank} is not one of {group.size}", where="group.rank"
        )


def _address(member: str) -> Address:
    host, _, port = member.rpartition(":")
    # Of digits there are more than int() takes.
    is_number = port.isascii() and port.isdigit() and len(port) < 6
    if not host or not is_number:
        raise EngineError(f"{member!r} is no host:port", where="group.members")
    return host.strip("[]"), int(port)


async def reachable(
    addresses: tuple[Address, ...],
    report: Callable[[Progress], None],
    *,
    within: float,
    every: float = 0.25,
) -> None:
    """Return once each of *addresses* accepts a connection; EngineError after *within*.

    A llama-server that cannot reach an rpc-server when it starts serves without it, on
    a memory that was not meant to hold the whole model.
    """
    for host, port in addresses:
        if not 0 < port < 65536:
            raise EngineError(f"{port} of {host} is no port", where="group")
    waiting = list(addresses)
    with anyio.move_on_after(within):
        while waiting:
            done = len(addresses) - len(waiting)
            report(Progress(what="members", done=done, total=len(addresses)))
            waiting = [one for one in waiting if not await _accepts(*one)]
            if waiting:
                await anyio.sleep(every)
    if waiting:
        missing = ", ".join(authority(*one) for one in waiting)
        raise EngineError(
            f"no answer from {missing} for {within:g} s",
            where="group.members",
            fix="see why they are not up: llmgw status, on those nodes",
        )


async def _accepts(host: str, port: int) -> bool:
    try:
        with anyio.fail_after(3):
            stream = await anyio.connect_tcp(host, port)
    except (OSError, TimeoutError, UnicodeError):  # the last: a name that is none
        return False
    await stream.aclose()
    return True
