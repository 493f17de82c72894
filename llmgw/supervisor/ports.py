"""Ports that engines bind: leased, held until the engine starts, rested after use."""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping

from llmgw.errors import EngineError


class Lease:
    """Some ports of one engine. Bound by us until `let_go`, so nobody else takes them.

    Picking a free port and binding it later let two engines that started together
    pick the same one.
    """

    def __init__(self, ports: Mapping[str, int], held: list[socket.socket]) -> None:
        self.ports = dict(ports)
        self._held = held

    def let_go(self) -> None:
        """The engine is about to bind them itself."""
        for holder in self._held:
            holder.close()
        self._held.clear()


class Ports:
    """*span* is "first-last". *clock* in seconds, monotonic."""

    def __init__(
        self, span: str, quarantine: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        first, _, last = span.partition("-")
        self._span = range(int(first), int(last or first) + 1)
        self._quarantine = quarantine
        self._clock = clock
        self._used: set[int] = set()
        self._resting: dict[int, float] = {}
        self._next = self._span.start

    def lease(
        self,
        names: tuple[str, ...],
        host: str,
        *,
        fixed: int | None = None,
        before: Mapping[str, int] | None = None,
    ) -> Lease:
        """A port for each name, distinct from all that are leased.

        *fixed* is the number wanted for the first; *before* those that the same replica
        had, preferred so that its address does not move. EngineError if they are not
        to be had.
        """
        ports: dict[str, int] = {}
        held: list[socket.socket] = []
        try:
            for name in names:
                if name == names[0] and fixed is not None:
                    port, holder = fixed, self._hold_fixed(fixed, host)
                else:
                    port, holder = self._hold_any((before or {}).get(name), host)
                ports[name] = port
                held.append(holder)
                self._used.add(port)
        except EngineError:
            self._used.difference_update(ports.values())
            Lease(ports, held).let_go()
            raise
        return Lease(ports, held)

    def adopt(self, ports: Mapping[str, int]) -> None:
        """They are in use by an engine that runs already."""
        self._used.update(ports.values())

    def give_back(self, ports: Mapping[str, int], *, rest: bool = True) -> None:
        """They rest: a client of the old engine must not reach the next one there."""
        for port in ports.values():
            self._used.discard(port)
            if rest:
                self._resting[port] = self._clock() + self._quarantine

    def _is_free(self, port: int) -> bool:
        return port not in self._used and self._resting.get(port, 0.0) <= self._clock()

    def _hold_fixed(self, port: int, host: str) -> socket.socket:
        if port in self._used:
            raise EngineError(f"port {port} is another engine's on this node")
        if not 0 < port < 65536:
            # The resolver takes 70000 for 4464: it would be bound, and never asked.
            raise EngineError(
                f"{port} is no port", fix="name one from 1 to 65535", final=True
            )
        try:
            return bound(host, port)
        except OSError as error:
            raise EngineError(
                f"port {port} cannot be bound on {host}: {error.strerror}",
                fix=f"see who has it: ss -ltnp 'sport = :{port}'",
                final=isinstance(error, PermissionError),
            ) from error

    def _hold_any(self, before: int | None, host: str) -> tuple[int, socket.socket]:
        if before is not None and before not in self._used:
            with contextlib.suppress(OSError):
                return before, bound(host, before)
        size = len(self._span)
        for step in range(size):
            port = self._span[(self._next - self._span.start + step) % size]
            if not self._is_free(port):
                continue
            try:
                holder = bound(host, port)
            except PermissionError:
                continue
            except OSError as error:
                if _is_address_fault(error):
                    raise EngineError(
                        f"{host} cannot be bound: {error.strerror}",
                        fix="set mgmt_addr to an address of this machine",
                    ) from error
                continue
            self._next = port + 1
            return port, holder
        raise EngineError(
            f"no free port in {self._span.start}-{self._span.stop - 1} on {host}",
            fix="widen supervisor.port_range",
        )


def _is_address_fault(error: OSError) -> bool:
    """Not this port but every port: the address is none of ours."""
    return isinstance(error, socket.gaierror) or error.errno in (99, 22)


def bound(host: str, port: int) -> socket.socket:
    """Bound, not listening. OSError if somebody has it."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    holder = socket.socket(family, kind, protocol)
    try:
        # On for the moment of binding, so that what lingers of connections to an engine
        # that just died does not bar its successor; off again, or anyone who sets it
        # too could bind beside us.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(address)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        holder.close()
        raise
    return holder
