"""The own address on the way to a control plane."""

import socket
from collections.abc import Callable

import anyio.to_thread

# Address and interface, None where there is none now.
Way = tuple[str | None, str | None]


async def source(
    peer: tuple[object, ...], interface: Callable[[str], str | None]
) -> Way:
    """How a connection to *peer* would leave this node. Nothing is sent."""
    return await anyio.to_thread.run_sync(_source, peer, interface)


def _source(peer: tuple[object, ...], interface: Callable[[str], str | None]) -> Way:
    family = socket.AF_INET6 if ":" in str(peer[0]) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            address = str(probe.getsockname()[0])
    except OSError:
        return None, None
    return address, interface(address)
