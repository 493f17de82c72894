"""What is wanted, and who has a session, in etcd: the next leader finds it there.

Each write holds only while the place in the election does, so that one who has lost it
without noticing changes nothing and accepts nobody.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

import anyio
import msgspec
from msgspec import Struct

from llmgw.control.etcd import Etcd, Kv, Won
from llmgw.control.refusals import refused
from llmgw.control.state import Desired, recalled
from llmgw.errors import LlmgwError
from llmgw.wire import UNDECODABLE, Register

log = logging.getLogger(__name__)


class Opened(Struct, frozen=True, kw_only=True):
    """The last session of a node: under which epoch, and what it said."""

    epoch: int
    register: Register


class Place(Protocol):
    """The place in the election that a write needs."""

    @property
    def won(self) -> Won | None: ...

    def lost(self) -> None: ...


class InEtcd:
    def __init__(self, etcd: Etcd, prefix: str, place: Place) -> None:
        self._etcd = etcd
        self._place = place
        self._desired_in = f"{prefix}desired/"
        self._sessions_in = f"{prefix}sessions/"
        self._desired: dict[str, Desired] = {}
        self._opened: dict[str, Opened] = {}

    @property
    def desired(self) -> Mapping[str, Desired]:
        return self._desired

    @property
    def nodes(self) -> Mapping[str, Register]:
        return {node_id: one.register for node_id, one in self._opened.items()}

    async def load(self, epoch: int) -> None:
        """Tried again for as long as this control plane leads."""
        said = ""
        while self._place.won is not None:
            try:
                return await self._load()
            except LlmgwError as error:
                # Once: a value that is damaged stays so until somebody mends it.
                if str(error) != said:
                    said = str(error)
                    log.warning("not read from etcd yet error=%s", said)
            await anyio.sleep(0.2)
        return None

    async def _load(self) -> None:
        self._desired = {
            kv.key.removeprefix(self._desired_in): msgspec.structs.replace(
                recalled(kv.value, f"etcd {kv.key}"), rev=kv.revision
            )
            for kv in await self._etcd.under(self._desired_in)
        }
        self._opened = {
            kv.key.removeprefix(self._sessions_in): opened
            for kv in await self._etcd.under(self._sessions_in)
            if (opened := _opened(kv))
        }

    async def put(self, node_id: str, desired: Desired) -> Desired:
        rev = await self._write(self._desired_in + node_id, desired)
        kept = msgspec.structs.replace(desired, rev=rev)
        self._desired[node_id] = kept
        return kept

    async def opened(self, register: Register, epoch: int) -> None:
        opened = Opened(epoch=epoch, register=register)
        await self._write(self._sessions_in + register.node_id, opened)
        self._opened[register.node_id] = opened

    async def _write(self, key: str, value: Struct) -> int:
        won = self._place.won
        if won is None:
            raise refused("not_leader", "leads no more")
        try:
            rev = await self._etcd.put(key, msgspec.json.encode(value), held=won)
        except LlmgwError as error:
            raise refused("busy", f"etcd: {error.what}", retry_after_s=1) from error
        if not rev:
            self._place.lost()
            raise refused("not_leader", "leads no more")
        return rev


def _opened(kv: Kv) -> Opened | None:
    """None where it is none to this version. It is only shown, until its node comes:
    a leader that another version handed over to is not kept from leading by that.
    """
    try:
        return msgspec.json.decode(kv.value, type=Opened)
    except UNDECODABLE as error:
        log.warning("last session passed over key=%s error=%s", kv.key, error)
        return None
