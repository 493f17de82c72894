"""The few things anyio does not have."""

import errno
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import anyio
import anyio.abc
from anyio.streams.stapled import MultiListener

T = TypeVar("T")

Listener = anyio.abc.Listener[anyio.abc.SocketStream]
Handler = Callable[[anyio.abc.SocketStream], Awaitable[None]]

# What accept(2) says when it could take no connection now; the next time it may.
_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED}
)
AGAIN = 0.1


class Latest(Generic[T]):
    """The newest value, not a queue of values.

    Who was busy for a minute acts on the present. Values count up: a reader keeps
    the number it saw last and waits for a newer one, so that none is missed and
    none is seen twice.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._number = 0
        self._changed = anyio.Event()

    @property
    def value(self) -> T:
        return self._value

    @property
    def number(self) -> int:
        return self._number

    def set(self, value: T) -> None:
        self._value = value
        self._number += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def newer_than(self, seen: int) -> tuple[int, T]:
        """Wait until the value is newer than number *seen* (-1: take what is there)."""
        while self._number <= seen:
            await self._changed.wait()
        return self._number, self._value


async def race(*contenders: Callable[[], Awaitable[T]]) -> T:
    """The result of whoever ends first; the others are cancelled.

    The first to raise, if none has ended, raises here as itself and not as a group.
    """
    results: list[T] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run(contender: Callable[[], Awaitable[T]]) -> None:
            try:
                results.append(await contender())
            except Exception as error:  # noqa: BLE001 -- raised again below, unwrapped
                errors.append(error)
            group.cancel_scope.cancel()

        for contender in contenders:
            group.start_soon(run, contender)
    if results:
        return results[0]
    raise errors[0]


async def first(
    contenders: Iterable[Callable[[], Awaitable[T]]],
    head_start: float,
    *,
    losing: type[Exception],
    discard: Callable[[T], Awaitable[None]],
) -> T | None:
    """The result of the first to succeed, in order, each with *head_start* seconds.

    One that raises *losing* makes way for the next at once; one that is silent goes on
    beside it. The others are cancelled, and what two of them had in the same instant
    goes to *discard*. None if all of them lost. *contenders* is read as it is needed,
    so that what one finds out can still change who comes next.
    """
    results: list[T] = []
    try:
        async with anyio.create_task_group() as group:

            async def run(
                contender: Callable[[], Awaitable[T]], lost: anyio.Event
            ) -> None:
                try:
                    results.append(await contender())
                except losing:
                    lost.set()
                else:
                    group.cancel_scope.cancel()

            for contender in contenders:
                lost = anyio.Event()
                group.start_soon(run, contender, lost)
                with anyio.move_on_after(head_start):
                    await lost.wait()
    except BaseException:
        # Cancelled in the instant that one succeeded: nobody else knows of it.
        await _discard_all(results, discard)
        raise
    await _discard_all(results[1:], discard)
    return results[0] if results else None


async def _discard_all(
    results: Iterable[T], discard: Callable[[T], Awaitable[None]]
) -> None:
    with anyio.CancelScope(shield=True):
        for result in results:
            await discard(result)


async def serve(listener: Listener, handler: Handler, *, at_once: int) -> None:
    """Until cancelled, each connection to *handler*, *at_once* of them.

    More wait in the kernel's queue: whoever connects by the thousand does not use up
    the descriptors that others here need. And where none is left there is no end.
    """
    room = anyio.Semaphore(at_once)

    async def answer(stream: anyio.abc.SocketStream) -> None:
        try:
            await handler(stream)
        finally:
            room.release()

    async def take(one: anyio.abc.SocketListener, group: anyio.abc.TaskGroup) -> None:
        while True:
            await room.acquire()
            try:
                stream = await _accept(one)
            except BaseException:
                room.release()
                raise
            group.start_soon(answer, stream)

    several = isinstance(listener, MultiListener)
    async with anyio.create_task_group() as group:
        for one in listener.listeners if several else [listener]:
            assert isinstance(one, anyio.abc.SocketListener)
            group.start_soon(take, one, group)


async def _accept(listener: anyio.abc.SocketListener) -> anyio.abc.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        await anyio.sleep(AGAIN)
