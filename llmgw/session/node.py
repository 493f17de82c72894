"""What the link and the rest of the agent know of each other."""

from collections.abc import Mapping
from typing import Literal, Protocol

from msgspec import Struct

from llmgw.aio import Latest
from llmgw.wire import Ask, Build, Facts, Load, Problem, ReplicaStatus, Wanted


class Identity(Struct, frozen=True, kw_only=True):
    """Who this node says it is. *mgmt_addr* and *mgmt_interface* as the file has them:
    None means found anew for each session.
    """

    node_id: str
    version: str
    mgmt_addr: str | None = None
    mgmt_interface: str | None = None


class Desired(Struct, frozen=True, kw_only=True):
    """A complete snapshot of an accepted leader: all that is wanted here.

    *kept* is one from before the agent started, read from disk: reason to start what
    it wants, none to stop what it lacks. A control plane has yet to say so.
    """

    epoch: int
    rev: int
    wanted: tuple[Wanted, ...]
    builds: tuple[Build, ...] = ()
    drain: bool = False
    kept: bool = False


class LinkStatus(Struct, frozen=True, kw_only=True):
    """How the link stands. *since* is a time of the event loop's clock, *tried* has the
    last reason each server was passed over for.
    """

    state: Literal["connecting", "connected", "disconnected"] = "connecting"
    since: float = 0.0
    server: str | None = None
    session: str | None = None
    epoch: int = 0
    mgmt_addr: str | None = None
    mgmt_interface: str | None = None
    heartbeat_s: float | None = None
    lease_s: float | None = None
    tried: dict[str, str] = {}
    sessions: int = 0


class Node(Protocol):
    """What the link asks the agent. Nothing here may block."""

    @property
    def hostname(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def draining(self) -> bool: ...

    @property
    def rev_applied(self) -> int | None:
        """Of the last snapshot that was acted on."""
        ...

    @property
    def changed(self) -> Latest[int]:
        """Set when what statuses, problems, draining or rev_applied say is news."""
        ...

    def statuses(self) -> tuple[ReplicaStatus, ...]: ...

    def load(self) -> Load: ...

    def problems(self) -> tuple[Problem, ...]: ...

    def facts(self) -> Facts: ...

    def interface(self, address: str) -> str | None:
        """The interface to announce for *address* (with its zone, if it has one).

        Called in a thread: it may read files.
        """
        ...

    async def answer(self, ask: Ask) -> bytes:
        """The body of an answer; LlmgwError if there is none."""
        ...
