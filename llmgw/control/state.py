"""What is wanted on each node, kept where a new leader finds it again.

The embedded store: one file per node in the state directory. The other one, on etcd,
is in etcd_state.py; the leader holds either whole in memory and is its only writer.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote, unquote

import anyio
import msgspec
from msgspec import Raw, Struct

from llmgw.control.files import read, write
from llmgw.errors import LlmgwError
from llmgw.wire import UNDECODABLE, Build, Register, Snapshot

Source = Literal["api", "file"]


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is decided here of a member of a group (group.py).

    *hold*: it is kept from its node, `waiting` for its group or `down` with it.
    *generation*: that of its last attempt, where it is above the written one. *filled*
    is what the operator left out of its `group`.
    """

    hold: Literal["waiting", "down"] | None = "waiting"
    generation: int = 0
    filled: dict[str, Any] = {}


class Desired(Struct, frozen=True, kw_only=True):
    """What is wanted on one node. *replicas* byte for byte as they were first said.

    The digest that a node keeps an engine by is made of those bytes' meaning; were
    they decoded and encoded again, a field of a newer version would be lost on the way.
    *parts*, by replica, are of those that belong to a group.
    """

    replicas: tuple[Raw, ...] = ()
    builds: tuple[Build, ...] = ()
    drain: bool = False
    source: Source = "api"
    rev: int = 0
    parts: dict[str, Part] = {}

    def same_as(self, other: "Desired") -> bool:
        return _meaning(self) == _meaning(other)

    def snapshot(self, epoch: int) -> Snapshot:
        return Snapshot(
            epoch=epoch,
            rev=self.rev,
            complete=True,
            replicas=tuple(self._sent()),
            builds=self.builds,
            drain=self.drain,
        )

    def _sent(self) -> Iterable[Raw]:
        for raw in self.replicas:
            replica = msgspec.json.decode(raw, type=dict[str, Any])
            if not replica.get("group"):
                yield raw
            elif (part := self.parts.get(replica["id"])) and part.hold is None:
                yield Raw(msgspec.json.encode(_completed(replica, part)))


def _completed(replica: dict[str, Any], part: Part) -> dict[str, Any]:
    written = {key: one for key, one in replica["group"].items() if one is not None}
    return {
        **replica,
        "generation": max(replica["generation"], part.generation),
        "group": {**part.filled, **written},
    }


def _meaning(desired: Desired) -> object:
    replicas = [msgspec.json.decode(raw) for raw in desired.replicas]
    return replicas, desired.builds, desired.drain, desired.source


def renewed(
    old: Desired | None,
    replicas: Iterable[dict[str, Any]],
    *,
    builds: tuple[Build, ...] = (),
    drain: bool = False,
    source: Source = "api",
) -> Desired:
    """What an operator says is wanted from now on, where it was *old*.

    A member of a group that is new or other than before waits for its group; one that
    stayed as it is keeps its part.
    """
    known = {_id(raw): raw for raw in old.replicas} if old else {}
    fresh = numbered(replicas, old)
    parts: dict[str, Part] = {}
    for raw in fresh:
        replica = msgspec.json.decode(raw, type=dict[str, Any])
        if not replica.get("group"):
            continue
        id = replica["id"]
        part = old.parts.get(id, Part()) if old else Part()
        same = id in known and msgspec.json.decode(known[id]) == replica
        parts[id] = part if same else msgspec.structs.replace(part, hold="waiting")
    return Desired(
        replicas=tuple(fresh), builds=builds, drain=drain, source=source, parts=parts
    )


def _id(raw: Raw) -> str:
    return msgspec.json.decode(raw, type=dict[str, Any])["id"]


def numbered(replicas: Iterable[dict[str, object]], old: Desired | None) -> list[Raw]:
    """The *replicas*, each with a generation.

    One that was left out stays what it is while the replica does not change, and is one
    more than the last when it does: who writes a replica by hand need not count.
    """
    known: dict[object, dict[str, object]] = {}
    for raw in old.replicas if old else ():
        replica = msgspec.json.decode(raw, type=dict[str, object])
        known[replica["id"]] = replica
    found: list[Raw] = []
    for replica in replicas:
        before = known.get(replica["id"])
        counted = {"generation": _generation(replica, before)} | {
            key: value
            for key, value in replica.items()
            if (key, value) != ("generation", None)
        }
        found.append(Raw(msgspec.json.encode(counted)))
    return found


def _generation(replica: dict[str, object], before: dict[str, object] | None) -> int:
    if before is None:
        return 1
    last = before["generation"]
    assert isinstance(last, int), "checked when it was written"
    return last if {**replica, "generation": last} == before else last + 1


class Store(Protocol):
    @property
    def desired(self) -> Mapping[str, Desired]:
        """By node. A node that nobody ever said anything about is not in it."""
        ...

    @property
    def nodes(self) -> Mapping[str, Register]:
        """Those that other leaders had a session with, where that is kept."""
        ...

    async def load(self, epoch: int) -> None:
        """Read all; called when this control plane begins to lead."""
        ...

    async def opened(self, register: Register, epoch: int) -> None:
        """A node has a session from here on; raises a refusal if we lead no more."""
        ...

    async def put(self, node_id: str, desired: Desired) -> Desired:
        """Keep *desired* and return it with its number; it is durable by then."""
        ...


class Files:
    """One file per node under the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "desired"
        self._desired: dict[str, Desired] = {}
        self._writing = anyio.Lock()

    @property
    def desired(self) -> Mapping[str, Desired]:
        return self._desired

    @property
    def nodes(self) -> Mapping[str, Register]:
        # There is one leader on this directory, and it waits for its nodes to come.
        return {}

    async def opened(self, register: Register, epoch: int) -> None:
        # A write a node would be too slow when a whole fleet registers at once.
        pass

    async def load(self, epoch: int) -> None:
        self._desired = await anyio.to_thread.run_sync(_load, self._directory)

    async def put(self, node_id: str, desired: Desired) -> Desired:
        async with self._writing:
            old = self._desired.get(node_id)
            kept = msgspec.structs.replace(desired, rev=old.rev + 1 if old else 1)
            file = self._directory / (quote(node_id, safe="") + ".json")
            await anyio.to_thread.run_sync(write, file, msgspec.json.encode(kept))
            self._desired[node_id] = kept
            return kept


def _load(directory: Path) -> dict[str, Desired]:
    try:
        directory.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        what = f"cannot be made: {error.strerror}"
        raise LlmgwError(what, where=str(directory)) from error
    return {
        unquote(file.name.removesuffix(".json")): recalled(read(file) or b"", str(file))
        for file in sorted(directory.glob("*.json"))
    }


class _Place(Struct):
    id: str
    rank: int
    size: int


class _Written(Struct):
    """What is relied on here of a replica; whatever else stands there is the node's."""

    id: str
    generation: int
    engine: str
    build: str | None = None
    group: _Place | None = None


def recalled(document: bytes, where: str) -> Desired:
    """What was kept of a node; LlmgwError if it is not that."""
    try:
        desired = msgspec.json.decode(document, type=Desired)
        for raw in desired.replicas:
            msgspec.json.decode(raw, type=_Written)
    except UNDECODABLE as error:
        # To lead without it would be to stop, at the next change, what it wants.
        raise LlmgwError(
            f"is not a node's desired state: {error}",
            where=where,
            fix="restore it, or remove it and write what is wanted anew",
        ) from error
    return desired
