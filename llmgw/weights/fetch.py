"""Weights, asked for by source; a path once they are whole.

The agent's side: it keeps one fetch process while something is wanted, and gives all
who want the same thing the one transfer (T74).
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from msgspec import Struct

from llmgw.aio import Latest
from llmgw.config import keys
from llmgw.errors import WeightsError
from llmgw.weights.cache import HOLD_EVERY
from llmgw.weights.copied import there, write_held
from llmgw.weights.order import (
    Begin,
    Cancel,
    Done,
    Failed,
    Fetch,
    Order,
    Working,
    answer,
    line,
)
from llmgw.weights.sources import masked
from llmgw.wire import Progress

log = logging.getLogger(__name__)

# The process is kept for a while: replicas are often asked for one after the other.
LINGER = 20.0
# Its own answers are short; this only bounds what a fault could make of them.
LONGEST_LINE = 1024 * 1024

Watcher = Callable[[Progress], None]


class Tally(Struct):
    """Since the agent began: bytes that came, kept or not; fetches that failed."""

    came: int = 0
    failed: int = 0


class _Wish:
    """One thing wanted, and everybody who waits for it."""

    def __init__(self, number: int, source: str, digest: str | None) -> None:
        self.number = number
        self.source = source
        self.digest = digest
        self.watchers: list[Watcher] = []
        self.over = anyio.Event()
        self.path: Path | None = None
        self.error: WeightsError | None = None
        self.latest: Progress | None = None

    def order(self) -> Fetch:
        return Fetch(id=self.number, source=self.source, digest=self.digest)


class Weights:
    """`run` is its life; `ensure` may be called as soon as that has begun."""

    def __init__(
        self,
        settings: keys.Weights,
        cache: Path,
        model_dirs: Sequence[Path | str] = (),
        *,
        flat: bool = False,
        environ: Mapping[str, str] = os.environ,
        linger: float = LINGER,
    ) -> None:
        self._begin = Begin(
            settings=settings,
            cache=str(cache),
            model_dirs=tuple(map(str, model_dirs)),
            flat=flat,
        )
        self._environ = environ
        self._linger = linger
        self._wishes: dict[tuple[str, str | None], _Wish] = {}
        self._count = 0
        self.tally = Tally()
        # What the process that runs now has told of it already.
        self._told = 0
        self._orders: list[Order] = []
        self._asked = anyio.Event()
        self._cache = cache
        self._held: Latest[tuple[str, ...] | None] = Latest(None)
        # Counts what has come, for whoever keeps a list of what is here.
        self.fetched: Latest[int] = Latest(0)

    @property
    def cache(self) -> Path:
        return self._cache

    @property
    def fetching(self) -> dict[str, Progress | None]:
        """What is being fetched, by source without its secrets; None: just begun."""
        return {masked(wish.source): wish.latest for wish in self._wishes.values()}

    async def hold(self, sources: Iterable[str]) -> None:
        """Say what the replicas of this node use, all of it: it is not evicted.

        It is kept on disk: engines outlive the agent, and so does what they need.
        """
        self._held.set(tuple(sorted(set(sources))))
        await self._write_held()

    async def _write_held(self) -> None:
        sources = self._held.value
        if sources is None:
            return
        try:
            await anyio.to_thread.run_sync(write_held, self._cache, sources)
        except OSError as error:
            log.warning("what is held cannot be written why=%s", error)

    async def _keep_held(self) -> None:
        while True:
            await anyio.sleep(HOLD_EVERY)
            await self._write_held()

    async def ensure(self, source: str, digest: str | None, progress: Watcher) -> Path:
        """Where the weights of *source* lie, once they are whole and verified.

        WeightsError says why they cannot be had, and whether for good. Cancelled:
        the transfer ends if nobody else waits for it, and what is here is kept.
        """
        path = await self._there(source, digest)
        if path is not None:
            return path
        key = (source, digest)
        wish = self._wishes.get(key)
        if wish is None:
            self._count += 1
            wish = self._wishes[key] = _Wish(self._count, source, digest)
            self._send(wish.order())
        elif wish.latest is not None:
            progress(wish.latest)
        wish.watchers.append(progress)
        try:
            await wish.over.wait()
        finally:
            wish.watchers.remove(progress)
            if not wish.watchers and self._wishes.get(key) is wish:
                del self._wishes[key]
                if not wish.over.is_set():
                    self._send(Cancel(id=wish.number))
        if wish.error is not None:
            raise wish.error
        assert wish.path is not None
        return wish.path

    async def _there(self, source: str, digest: str | None) -> Path | None:
        """What lies complete: no process is started to say so.

        A folder on a server that does not answer is left to the process, which may
        hang as it likes.
        """
        if self._begin.flat:
            return None
        dirs = [Path(d) for d in (self._begin.cache, *self._begin.model_dirs)]
        with anyio.move_on_after(1.0):
            try:
                return await anyio.to_thread.run_sync(
                    there, source, digest, dirs, abandon_on_cancel=True
                )
            except OSError:
                pass  # the process meets it too, and says what it is
        return None

    def _send(self, message: Order) -> None:
        self._orders.append(message)
        self._asked.set()

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_held)
            task_status.started()
            await self._work()

    async def _work(self) -> None:
        while True:
            await self._asked.wait()
            if not self._orders:
                self._asked = anyio.Event()  # the last one's end, not a wish
                continue
            try:
                async with self._process() as (reader, writer):
                    await self._serve(reader, writer)
            except OSError as error:
                self._all_failed(f"the fetch process cannot be started: {error}")

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass orders on and answers back until the process ends or has no work."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._pass_on, writer, group.cancel_scope)
            while raw := await reader.readline():
                self._take(raw)
            group.cancel_scope.cancel()

    async def _pass_on(
        self, writer: asyncio.StreamWriter, scope: anyio.CancelScope
    ) -> None:
        while True:
            orders, self._orders = self._orders, []
            self._asked = anyio.Event()
            for message in orders:
                writer.write(line(message))
            await _drain(writer)
            # While something is wanted there is no limit: with one of 0, as a
            # command has it, this loop took a whole core beside every fetch.
            with anyio.move_on_after(math.inf if self._wishes else self._linger):
                await self._asked.wait()
                continue
            scope.cancel()
            return

    def _take(self, raw: bytes) -> None:
        message = answer(raw)
        self.tally.came += message.came - self._told
        self._told = message.came
        wish = next((w for w in self._wishes.values() if w.number == message.id), None)
        if wish is None:
            return  # nobody waits for it any more
        match message:
            case Working(progress=progress):
                wish.latest = progress
                for watcher in tuple(wish.watchers):
                    watcher(progress)
                return
            case Done(path=path):
                wish.path = Path(path)
                self.fetched.set(self.fetched.value + 1)
            case Failed():
                self.tally.failed += 1
                wish.error = WeightsError(
                    message.what,
                    where=message.where,
                    fix=message.fix,
                    final=message.final,
                )
        del self._wishes[wish.source, wish.digest]
        wish.over.set()
        if not self._wishes:
            self._asked.set()

    def _all_failed(self, what: str) -> None:
        self._orders = []
        self._asked = anyio.Event()
        wishes, self._wishes = self._wishes, {}
        self.tally.failed += len(wishes)
        for wish in wishes.values():
            wish.error = WeightsError(what, where=wish.source, final=False)
            wish.over.set()

    @contextlib.asynccontextmanager
    async def _process(
        self,
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """The fetch process. It ends when its input does, or is made to."""
        status = 0
        ours, theirs = socket.socketpair()
        with theirs:
            self._told = 0
            pid = _spawn(theirs.fileno(), self._environ)
        try:
            reader, writer = await asyncio.open_connection(
                sock=ours, limit=LONGEST_LINE
            )
            try:
                writer.write(line(self._begin))
                yield reader, writer
            finally:
                writer.close()
        finally:
            with anyio.CancelScope(shield=True):
                status = await _reaped(pid)
        if status or self._wishes:
            log.warning("fetch process ended status=%s", status)
            self._all_failed(f"the fetch process ended ({_told(status)})")


async def _drain(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.drain()
    except ConnectionError:
        pass  # it has ended; whoever reads sees that too


def _spawn(end: int, environ: Mapping[str, str]) -> int:
    # Tokens come from files: one in the environment would be in every crash report.
    env = {
        k: v
        for k, v in environ.items()
        if k not in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    }
    # What this process imports from is what that one must: a wrapper, as Nix makes
    # one, adds folders that a bare interpreter would not find.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "llmgw.weights.child"],
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, end, 0), (os.POSIX_SPAWN_DUP2, end, 1)],
    )


async def _reaped(pid: int) -> int:
    """Wait for it: a moment if it is willing, then it is killed."""
    pidfd = os.pidfd_open(pid)
    try:
        with anyio.move_on_after(2.0):
            await anyio.wait_readable(pidfd)
            return _status_of(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        await anyio.wait_readable(pidfd)
        return _status_of(pid)
    finally:
        os.close(pidfd)


def _status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _told(status: int) -> str:
    if status == -signal.SIGKILL:
        return "killed; by the kernel, if memory ran out"
    return f"signal {-status}" if status < 0 else f"exit {status}"
