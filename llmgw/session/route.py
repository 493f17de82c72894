"""The own address on the way to a control plane."""

import socket
from collections.abc import Callable

import anyio.to_thread


async def source(
    peer: tuple[object, ...], interface: Callable[[str], str | None]
) -> tuple[str | None, str | None]:
    """Address and interface, None where there is none now. Nothing is sent."""
    return await anyio.to_thread.run_sync(_source, peer, interface)


def _source(
    peer: tuple[object, ...], interface: Callable[[str], str | None]
) -> tuple[str | None, str | None]:
    family = socket.AF_INET6 if ":" in str(peer[0]) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            address = str(probe.getsockname()[0])
    except OSError:
        return None, None
    return address, interface(address)
