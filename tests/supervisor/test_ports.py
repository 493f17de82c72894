"""Ports are leased before they are bound, and rest after."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.errors import EngineError
from llmgw.supervisor.ports import Ports
from tests.fakes.ports import free_block
from tests.supervisor.conftest import node, order


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def start() -> int:
    return free_block(40)


@pytest.fixture
def taken() -> Iterator[int]:
    """A number that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_twenty_at_once_get_disjoint_ports(start: int) -> None:
    """T65: nobody is given a number that another was given a moment before."""
    ports = Ports(f"{start}-{start + 99}", 60.0)

    leases = [ports.lease(("api", "dist"), "127.0.0.1") for _ in range(20)]

    numbers = [port for lease in leases for port in lease.ports.values()]
    assert len(set(numbers)) == 40
    for lease in leases:
        lease.let_go()


@pytest.mark.parametrize("number", [-1, 0, 65536, 70000, 2**62])
def test_a_number_that_is_no_port_is_refused(start: int, number: int) -> None:
    """The resolver takes 70000 for 4464. The engine's health was then asked at 70000,
    which ended the agent, and the next one, that adopted the engine.
    """
    ports = Ports(f"{start}-{start + 39}", 60.0)

    with pytest.raises(EngineError, match="is no port"):
        ports.lease(("api",), "127.0.0.1", fixed=number)

    ports.lease(("api",), "127.0.0.1").let_go()


def test_a_leased_port_is_held_against_everyone(start: int) -> None:
    ports = Ports(f"{start}-{start + 39}", 60.0)
    lease = ports.lease(("api",), "127.0.0.1")

    for reuse in (0, 1):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", lease.ports["api"]))
    lease.let_go()
    with socket.socket() as engine:
        engine.bind(("127.0.0.1", lease.ports["api"]))


def test_a_port_that_somebody_has_is_passed_over(taken: int) -> None:
    ports = Ports(f"{taken}-{taken + 20}", 60.0)

    lease = ports.lease(("api",), "127.0.0.1")

    assert lease.ports["api"] != taken
    lease.let_go()


def test_a_fixed_port_that_somebody_has_is_an_error_that_says_how_to_see_who(
    taken: int, start: int
) -> None:
    """T67"""
    ports = Ports(f"{start}-{start + 9}", 60.0)

    with pytest.raises(EngineError, match=f"port {taken} cannot be bound") as error:
        ports.lease(("api",), "127.0.0.1", fixed=taken)

    assert str(taken) in error.value.fix


def test_a_failed_lease_holds_nothing(taken: int, start: int) -> None:
    ports = Ports(f"{start}-{start}", 60.0)

    with pytest.raises(EngineError):
        ports.lease(("dist", "api"), "127.0.0.1", fixed=taken)
    lease = ports.lease(("api",), "127.0.0.1")

    assert lease.ports == {"api": start}
    lease.let_go()


def test_a_port_rests_after_use(start: int) -> None:
    clock = Clock()
    ports = Ports(f"{start}-{start}", 60.0, clock)
    lease = ports.lease(("api",), "127.0.0.1")
    lease.let_go()
    ports.give_back(lease.ports)

    clock.now = 59.0
    with pytest.raises(EngineError, match="no free port"):
        ports.lease(("api",), "127.0.0.1")
    clock.now = 60.0
    again = ports.lease(("api",), "127.0.0.1")

    assert again.ports == lease.ports
    again.let_go()


def test_the_same_replica_gets_its_port_back_at_once(start: int) -> None:
    """Its address does not move because it crashed."""
    ports = Ports(f"{start}-{start + 9}", 60.0)
    lease = ports.lease(("api",), "127.0.0.1")
    lease.let_go()
    ports.give_back(lease.ports)

    again = ports.lease(("api",), "127.0.0.1", before=lease.ports)

    assert again.ports == lease.ports
    again.let_go()


def test_an_address_of_another_machine_is_said_to_be_one(start: int) -> None:
    """Not "no free port": a thousand numbers do not help."""
    ports = Ports(f"{start}-{start + 9}", 60.0)

    with pytest.raises(EngineError, match="cannot be bound"):
        ports.lease(("api",), "192.0.2.1")


def test_ports_of_another_family_are_checked_there(start: int) -> None:
    """T28"""
    ports = Ports(f"{start}-{start + 9}", 60.0)

    lease = ports.lease(("api",), "::1")

    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="use"):
        other.bind(("::1", lease.ports["api"]))
    lease.let_go()


async def test_engines_that_start_together_get_ports_of_their_own(
    state_dir: Path,
) -> None:
    """T65 with real engines."""
    async with node(state_dir) as here:
        for number in range(8):
            here.supervisor.want(order(f"fake-{number}", ports=("api", "dist")))
        ready = [await here.state("ready", f"fake-{n}", 20) for n in range(8)]

        numbers = [port for status in ready for port in status.ports.values()]
        assert len(set(numbers)) == 16
        assert {status.restarts for status in ready} == {0}
        await here.supervisor.stop_all()


async def test_an_engine_on_ipv6_is_asked_there(state_dir: Path) -> None:
    """T28: brackets in the address, and the check goes where the engine is."""
    async with node(state_dir) as here:
        here.supervisor.want(order("fake-0", "--host", "::1", host="::1"))
        ready = await here.state("ready")

        assert ready.address == "::1"
        await here.supervisor.stop_all()
