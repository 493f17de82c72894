"""Ports that nothing beside this test is given, as far as the kernel knows."""

import socket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_block(size: int) -> int:
    """The first of *size* numbers near one that the kernel says is free.

    Whether each is free is the supervisor's own business: it asks before it leases.
    """
    return min(free_port(), 65536 - size)
