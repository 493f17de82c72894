"""The two ways to hold an engine look like this from the keeper's side."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from llmgw import wire
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity


class Place(Struct, frozen=True, kw_only=True):
    """Where one engine lives on the disk, and the environment that all get."""

    run: Path
    log: Path
    env: dict[str, str]


class Engine(Protocol):
    """A process that runs, ours to watch and to end. One task owns it.

    Dropping it (`close`) leaves the process as it is.
    """

    @property
    def identity(self) -> Identity: ...

    @property
    def adopted(self) -> bool: ...

    async def exited(self) -> wire.Exit:
        """Returns once it has ended by itself; may be cancelled and asked again."""
        ...

    async def stop(self, sign: signal.Signals, grace: float) -> wire.Exit:
        """*sign*, *grace* seconds, SIGKILL, over everything that it started.

        Returns once all of it is gone, whoever cancels.
        """
        ...

    def effort(self) -> tuple[int, int]:
        """Bytes read and MiB held, by all of it. Blocks: call it in a thread."""
        ...

    def look_around(self) -> None:
        """Remembers what it has started so far. Blocks: call it in a thread."""
        ...

    def ooms(self) -> int | None:
        """How many of it the kernel killed for want of memory; None: not known.

        Blocks: call it in a thread.
        """
        ...

    def pressure(self) -> float | None:
        """The part of the last ten seconds that some of it waited for memory.

        None: not known. Blocks: call it in a thread.
        """
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """Starts and adopts. `mode` says to an operator how engines are held."""

    name: str
    mode: str

    async def start(
        self,
        id: str,
        launch: Launch,
        place: Place,
        record: Callable[[Identity, str | None], None],
    ) -> Engine:
        """*record* is called, in a thread, before the engine runs an instruction.

        It is given the identity and the cgroup. If it raises, nothing was started.
        EngineError if the engine could not be started.
        """
        ...

    async def adopt(self, entry: Entry) -> Engine | None:
        """Takes over what the entry names; None unless it is proved to be that."""
        ...

    async def clear(self, id: str) -> None:
        """Ends whatever an earlier engine of this replica left behind."""
        ...
