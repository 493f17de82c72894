"""The reference control plane as one task: `serve` lives as long as it serves."""

import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from aiohttp import web

from llmgw.control.access import Access, token_in
from llmgw.control.admin_api import AdminApi
from llmgw.control.certified import Served
from llmgw.control.desired_file import DesiredFile
from llmgw.control.election import Elected
from llmgw.control.etcd import Etcd
from llmgw.control.etcd_client import Client
from llmgw.control.etcd_state import InEtcd
from llmgw.control.files import held
from llmgw.control.groups import Groups
from llmgw.control.http_log import Requests
from llmgw.control.leader import Followed, Lead, Role, Told
from llmgw.control.node_api import NodeApi
from llmgw.control.plane import Plane
from llmgw.control.refusals import as_problems
from llmgw.control.settings import Settings, checked, joined, split_listen
from llmgw.control.state import Files, Store
from llmgw.errors import LlmgwError

log = logging.getLogger(__name__)

# A registration with its replicas, or facts with many models, unpacked.
LARGEST_BODY = 16 * 1024 * 1024
# Requests that are being answered when the port closes get so long to end.
LAST_WORDS = 1.0


async def serve(
    settings: Settings,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; `started` with its URL once it can be asked.

    LlmgwError if the port, the state directory or a file cannot be used. Cancelled, it
    tells every agent to go elsewhere; what they run stays as it is.
    """
    checked(settings)
    lock = held(settings.state_dir)
    await anyio.to_thread.run_sync(lock.__enter__)
    try:
        await _serve(settings, task_status)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lock.__exit__, None, None, None)


async def _serve(settings: Settings, task_status: anyio.abc.TaskStatus[str]) -> None:
    token = await anyio.to_thread.run_sync(token_in, settings.token_file)
    async with AsyncExitStack() as stack:
        etcd: Client | None = None
        if settings.role == "etcd":
            etcd = await stack.enter_async_context(Client(settings.etcd.tls))
        role, store = _parts(settings, etcd)
        plane = Plane(settings, role, store)
        groups = Groups(plane)
        access = Access(token, settings.operators)
        port = Port(settings, plane, AdminApi(plane, groups, access))
        watches = [port.certificates.watch, *([etcd.watch] if etcd else ())]
        await _run(settings, plane, groups, port, watches, task_status)


async def _run(
    settings: Settings,
    plane: Plane,
    groups: Groups,
    port: "Port",
    watches: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    task_status: anyio.abc.TaskStatus[str],
) -> None:
    role = plane.role
    async with anyio.create_task_group() as group:
        await group.start(role.run)
        await port.bind()
        try:
            await _lead(plane, role.lead.value)
            if role.lead.value.is_open:
                await port.open()
            if settings.desired_file:
                await group.start(DesiredFile(settings.desired_file, plane).run)
            group.start_soon(_follow, plane, port)
            group.start_soon(_expire, plane)
            await group.start(groups.run)
            for watch in watches:
                group.start_soon(watch)
            task_status.started(port.url)
            await anyio.sleep_forever()
        finally:
            # What awaits here is bounded by LAST_WORDS; agents told to go are with
            # another control plane before their heartbeat is due.
            with anyio.CancelScope(shield=True):
                plane.end_sessions("shutdown")
                await port.close()
                port.release()


def _parts(settings: Settings, etcd: Client | None) -> tuple[Role, Store]:
    if etcd is not None:
        chosen = settings.etcd
        cluster = Etcd(etcd, chosen.endpoints, chosen.ttl / 4)
        elected = Elected(
            cluster,
            chosen.prefix,
            ttl=chosen.ttl,
            url=settings.url,
            floor=settings.epoch_floor,
        )
        return elected, InEtcd(cluster, chosen.prefix, elected)
    files = Files(settings.state_dir)
    if settings.role == "follow-file":
        assert settings.role_file, "checked"
        return Followed(settings.role_file, url=settings.url), files
    is_leader = settings.role == "leader"
    told = Told(
        settings.state_dir,
        is_leader=is_leader,
        floor=settings.epoch_floor,
        url=settings.url if is_leader else settings.leader_url,
    )
    return told, files


async def _follow(plane: Plane, port: "Port") -> None:
    """Take up and lay down the lead, open and close the port, as the role says."""
    seen = plane.role.lead.number
    before = plane.role.lead.value
    while True:
        seen, lead = await plane.role.lead.newer_than(seen)
        if before.is_leader and (not lead.is_leader or lead.epoch != before.epoch):
            plane.loaded_epoch = None
            plane.end_sessions("not_leader")
            log.info("leads no more epoch=%d", before.epoch)
        if not lead.is_open:
            await port.close()
        await _lead(plane, lead)
        if lead.is_open:
            await port.open()
        before = lead


async def _lead(plane: Plane, lead: Lead) -> None:
    if lead.is_leader:
        await plane.store.load(lead.epoch)
        plane.loaded_epoch = lead.epoch
        plane.touch()
        log.info("leads epoch=%d nodes=%d", lead.epoch, len(plane.store.desired))


async def _expire(plane: Plane) -> None:
    while True:
        await anyio.sleep_until(plane.sessions.next_expiry())
        plane.sessions.expire()


class Port:
    """The sockets, bound once and open while the role says so."""

    def __init__(self, settings: Settings, plane: Plane, admin: AdminApi) -> None:
        self._settings = settings
        self._plane = plane
        self._admin = admin
        self.certificates = Served(settings.tls)
        self._log = Requests()
        self._sockets: list[socket.socket] = []
        self._runner: web.AppRunner | None = None
        self._host, self._port = split_listen(settings.listen)

    @property
    def url(self) -> str:
        """How it is reached from this machine."""
        scheme = "https" if self._settings.tls.enabled else "http"
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(  # noqa: S104 -- compared, not bound
            self._host, self._host
        )
        return f"{scheme}://{joined(host, self._port)}"

    async def bind(self) -> None:
        """Take the port, closed as yet: LlmgwError if another program has it."""
        self._sockets = await anyio.to_thread.run_sync(_bound, self._host, self._port)
        self._port = self._sockets[0].getsockname()[1]

    async def open(self) -> None:
        if self._runner is not None:
            return
        if not self._sockets:
            await self.bind()
        context = await anyio.to_thread.run_sync(self.certificates.context)
        app = web.Application(middlewares=[as_problems], client_max_size=LARGEST_BODY)
        app.add_routes(NodeApi(self._plane).routes())
        app.add_routes(self._admin.routes())
        self._runner = web.AppRunner(
            app, access_log=None, logger=self._log, shutdown_timeout=LAST_WORDS
        )
        await self._runner.setup()
        for each in self._sockets:
            site = web.SockSite(self._runner, each, ssl_context=context)
            await site.start()
        if self._settings.admin_socket:
            await _listen(self._runner, self._settings.admin_socket)

    async def close(self) -> None:
        """No new connection, and none of the present ones beyond its last words."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        await runner.cleanup()
        # Closed with the sites; `open` takes the same port again.
        self._sockets = []

    def release(self) -> None:
        for each in self._sockets:
            each.close()


def _bound(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of *host*; "" is every address."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, named in dict.fromkeys(infos):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `[::]` alone is every address of both kinds.
                alone = len(infos) > 1
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
            # With port 0 all addresses share that which the first was given.
            taken = found[0].getsockname()[1] if len(found) > 1 else port
            one.bind((named[0], taken, *named[2:]))
            one.setblocking(False)
    except OSError as error:
        for one in found:
            one.close()
        raise LlmgwError(
            f"cannot listen: {error.strerror or error}",
            where=joined(host, port),
            fix="name another address with --listen, or stop what holds this one",
        ) from error
    return found


async def _listen(runner: web.AppRunner, path: Path) -> None:
    try:
        await anyio.to_thread.run_sync(_make_room, path)
        await web.UnixSite(runner, str(path)).start()
    except OSError as error:
        raise LlmgwError(
            f"cannot listen: {error.strerror or error}",
            where=str(path),
            fix="name another path with --admin-socket, of at most 107 bytes",
        ) from error


def _make_room(path: Path) -> None:
    """Remove a socket that a killed control plane left; the directory is held."""
    if path.is_socket():
        path.unlink()
