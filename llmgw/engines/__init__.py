"""How each engine is started; starts nothing.

The table below is the list of engines: support another by writing its module and
adding a line.
"""

from collections.abc import Collection
from typing import Protocol

from llmgw.config import keys
from llmgw.engines import allow, command, llamacpp, sglang, vllm
from llmgw.engines.group import Address
from llmgw.engines.place import Place, Settings
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Launch
from llmgw.wire import Replica


class Engine(Protocol):
    """What a module of this package has. All of it is pure."""

    @property
    def RESERVED(self) -> Collection[str]: ...  # noqa: N802 -- a module's constant

    def ports(self, replica: Replica) -> tuple[str, ...]: ...
    def port(self, replica: Replica) -> int | None: ...
    def awaits(self, replica: Replica) -> tuple[Address, ...]: ...
    def launch(self, replica: Replica, place: Place) -> Launch: ...


ENGINES: dict[str, Engine] = {
    "llamacpp": llamacpp,
    "vllm": vllm,
    "sglang": sglang,
    "command": command,
}


def admit(replica: Replica, settings: keys.Engines) -> Settings:
    """The engine's section of the node's file, if it lets *replica* run here.

    EngineError says what is refused. Costs nothing: ask before weights are fetched.
    """
    engine = _engine(replica)
    section: Settings = getattr(settings, replica.engine)
    allow.check(replica, section, engine.RESERVED)
    return section


def ports(replica: Replica) -> tuple[str, ...]:
    """The names of the ports to lease for *replica*."""
    return _engine(replica).ports(replica)


def port(replica: Replica) -> int | None:
    """The number that the first of these ports must have; None: any free one."""
    return _engine(replica).port(replica)


def awaits(replica: Replica) -> tuple[Address, ...]:
    """Who has to accept connections before *replica* is launched (group.reachable)."""
    return _engine(replica).awaits(replica)


def launch(replica: Replica, place: Place) -> Launch:
    """Exactly what to execute for *replica* at *place*.

    EngineError if the node's file does not allow it, or if something is missing.
    """
    engine = _engine(replica)
    allow.check(replica, place.settings, engine.RESERVED)
    return engine.launch(replica, place)


def _engine(replica: Replica) -> Engine:
    try:
        return ENGINES[replica.engine]
    except KeyError:
        raise EngineError(
            f"{replica.engine!r} is no engine that this agent knows",
            where="engine",
            fix=f"use one of {', '.join(sorted(ENGINES))}",
        ) from None
