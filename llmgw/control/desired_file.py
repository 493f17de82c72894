"""What is wanted, from a file `{node_id: [Replica]}` that is read again on change."""

import logging
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
from aiohttp import web

from llmgw.control import bodies
from llmgw.control.files import read
from llmgw.control.plane import Plane
from llmgw.control.state import Desired, renewed
from llmgw.errors import ConfigError, Fault, LlmgwError

log = logging.getLogger(__name__)

LOOK = 0.2


def parse(content: bytes, file: Path) -> dict[str, list[dict[str, object]]]:
    """ConfigError names every fault."""
    found = bodies.by_node(content)
    if isinstance(found, list):
        raise ConfigError(
            tuple(Fault(what=one.what, key=one.where, file=str(file)) for one in found)
        )
    return found


class DesiredFile:
    """Follows *file* while this control plane leads.

    A node that the file no longer names keeps what it has, for a line lost in an editor
    must not stop its engines: who wants it empty writes `[]`.
    """

    def __init__(self, file: Path, plane: Plane) -> None:
        self._file = file
        self._plane = plane
        self._fault = ""

    async def run(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """ConfigError if the file is wrong at the start; later the old one stays."""
        content = await self._read()
        if content is None:
            raise LlmgwError(
                "there is no such file", where=str(self._file), fix="write {} into it"
            )
        parse(content, self._file)
        task_status.started()
        applied: tuple[int | None, bytes | None] = (None, None)
        while True:
            lead = self._plane.loaded_epoch
            news = self._plane.is_leading() and (lead, content) != applied
            if news and await self._apply(content):
                applied = (lead, content)
            await anyio.sleep(LOOK)
            content = await self._newer(content)

    async def _newer(self, content: bytes | None) -> bytes | None:
        """What the file says now; *content*, if that cannot be known."""
        try:
            said = await self._read()
        except LlmgwError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.warning("desired file unread, the last one stays error=%s", error)
            return content
        self._fault = ""
        return said

    async def _read(self) -> bytes | None:
        return await anyio.to_thread.run_sync(read, self._file)

    async def _apply(self, content: bytes | None) -> bool:
        """Whether it is done with: what is wrong in it stays so until it changes."""
        try:
            wanted = parse(content or b"", self._file)
        except ConfigError as error:
            log.warning("desired file wrong, the last one stays error=%s", error)
            return True
        try:
            await self._want(wanted)
        except (LlmgwError, web.HTTPError) as error:
            log.warning("desired file not kept yet error=%s", error)
            return False
        return True

    async def _want(self, wanted: dict[str, list[dict[str, object]]]) -> None:
        desired = self._plane.store.desired
        for node_id, replicas in wanted.items():
            before = desired.get(node_id)
            kept = await self._plane.want(node_id, partial(_renewed, replicas))
            if kept is not before:
                log.info("desired file read node=%s rev=%d", node_id, kept.rev)
        for node_id, old in desired.items():
            if old.source == "file" and node_id not in wanted and old.replicas:
                log.warning(
                    "desired file no longer names a node, what it runs stays node=%s",
                    node_id,
                )


def _renewed(replicas: list[dict[str, object]], old: Desired | None) -> Desired:
    new = renewed(old, replicas, source="file")
    return old if old is not None and old.same_as(new) else new
