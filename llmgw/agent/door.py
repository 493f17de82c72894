"""The local door: how a person on the node asks the agent, over a unix socket.

One connection carries one request, a JSON object on a line with `op` and what it
needs, and gets one answer a line: `{"value": …}` or `{"error": {what, where, fix}}`.
The agent closes when it has said all; a client that leaves ends what it asked for.
"""

import logging
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import UNSET, Struct, UnsetType

from llmgw.aio import serve
from llmgw.errors import AS_ANOTHER_USER, LlmgwError
from llmgw.wire import UNDECODABLE

log = logging.getLogger(__name__)

SYSTEM = Path("/run/llmgw/agent.sock")
LONGEST = 1024 * 1024
LARGEST_ANSWER = 64 * LONGEST
PATIENCE = 10.0
AT_ONCE = 64  # people and their scripts

Request = Mapping[str, Any]
Answers = Callable[[Request], AsyncIterator[Any]]


def default_path(
    environment: Mapping[str, str] = os.environ,
    system: Path = SYSTEM,
    user: int | None = None,
) -> Path:
    """The system agent's socket, or that of this user's own agent.

    The system's is it also for the service's own user, who owns the folder, and inside
    the unit: there, whether an agent listens yet is not what decides.
    """
    if folder := environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]:
        return Path(folder) / system.name
    user = os.geteuid() if user is None else user
    if user == 0 or _owner(system) is not None or _owner(system.parent) == user:
        return system
    return Path.home() / ".local/state/llmgw/agent.sock"


def _owner(path: Path) -> int | None:
    """Whose it is; None if it is not there, or may not be seen."""
    try:
        return path.stat().st_uid
    except OSError:
        return None


class Door:
    """Listens on *path* and answers with *ops*; who may connect is the file's mode."""

    def __init__(self, path: Path, ops: Mapping[str, Answers]) -> None:
        self._path = path
        self._ops = ops

    async def run(
        self,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. LlmgwError if another agent has the socket."""
        listener = await self._listen()
        try:
            async with listener:
                task_status.started()
                await serve(listener, self._serve, at_once=AT_ONCE)
        finally:
            # Two system calls that cannot hang; this must also run when cancelled.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._remove)

    async def _listen(self) -> anyio.abc.Listener[anyio.abc.SocketStream]:
        await anyio.to_thread.run_sync(make_room, self._path)
        try:
            return await anyio.create_unix_listener(str(self._path), mode=0o660)
        except OSError as error:
            raise _not_made(self._path, error) from error

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                await self._answer(stream)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                log.debug("local client left")

    async def _answer(self, stream: anyio.abc.SocketStream) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                line = await BufferedByteReceiveStream(stream).receive_until(
                    b"\n", LONGEST
                )
            request = msgspec.json.decode(line, type=dict[str, Any])
            answers = self._ops[request["op"]]
        except (
            TimeoutError,
            anyio.DelimiterNotFound,
            anyio.IncompleteRead,
            *UNDECODABLE,
            KeyError,
            TypeError,
        ):
            known = ", ".join(sorted(self._ops))
            error = LlmgwError(f"not a request: one JSON line with op, one of {known}")
            await stream.send(_said(error))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(_until_gone, stream, group.cancel_scope)
            try:
                async for value in answers(request):
                    await stream.send(msgspec.json.encode({"value": value}) + b"\n")
            except LlmgwError as error:
                await stream.send(_said(error))
            group.cancel_scope.cancel()


def _not_made(path: Path, error: OSError) -> LlmgwError:
    return LlmgwError(
        f"the agent's socket cannot be made: {error.strerror or error}",
        where=str(path),
        fix="name another place with --socket PATH",
    )


def make_room(path: Path) -> None:
    """Remove what a dead agent left. LlmgwError if a living one answers there, or if
    there can be no socket.
    """
    try:
        _make_room(path)
    except OSError as error:
        raise _not_made(path, error) from error


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise LlmgwError("is there and is not a socket", where=str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass  # it stands still, and more wait for it than the kernel keeps
    raise LlmgwError(
        "another agent answers here",
        where=str(path),
        fix="stop it, or name another place with --socket PATH",
    )


async def _until_gone(stream: anyio.abc.SocketStream, scope: anyio.CancelScope) -> None:
    try:
        while await stream.receive():
            pass
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        scope.cancel()


def _said(error: LlmgwError) -> bytes:
    said = {"what": error.what, "where": error.where, "fix": error.fix}
    return msgspec.json.encode({"error": said}) + b"\n"


def once(answer: Callable[[Request], Awaitable[Any]]) -> Answers:
    """An op that answers once."""

    async def answers(request: Request) -> AsyncIterator[Any]:
        yield await answer(request)

    return answers


class _Error(Struct):
    what: str
    where: str = ""
    fix: str = ""


class _Answer(Struct):
    value: Any = UNSET
    error: _Error | UnsetType = UNSET


def ask_once(path: Path, op: str, **arguments: Any) -> Any:
    """The one answer to a question that has one; LlmgwError as `ask`, or if the agent
    ends before it is given: what was asked for may not have been done.
    """
    for value in ask(path, op, **arguments):
        return value
    raise LlmgwError(
        "the agent ended before it answered",
        where=str(path),
        fix="ask again once it runs",
    )


def ask(
    path: Path, op: str, *, patience: float | None = PATIENCE, **arguments: Any
) -> Iterator[Any]:
    """Ask the agent behind *path*; yields each value it answers.

    *patience*: seconds to wait for each whole answer, None for ever. LlmgwError if no
    agent listens there, if it does not answer, or with the fault the agent answered.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(patience)
        try:
            door.connect(str(path))
            door.sendall(msgspec.json.encode({"op": op, **arguments}) + b"\n")
            for line in _lines(door, patience):
                yield _value(line, path)
        except TimeoutError as error:
            raise LlmgwError(
                f"the agent has not answered for {patience:g} s", where=str(path)
            ) from error
        except PermissionError as error:
            raise LlmgwError(
                f"may not be opened by this user: {error.strerror}",
                where=str(path),
                fix=AS_ANOTHER_USER,
            ) from error
        except OSError as error:
            raise LlmgwError(
                f"no agent answers: {error.strerror or error}",
                where=str(path),
                fix=_start(path),
            ) from error


def _start(path: Path) -> str:
    """Root's own agent would leave files that the unit cannot write."""
    if path == SYSTEM:
        return (
            "`systemctl status llmgw-agent` says why, `systemctl start llmgw-agent` "
            "starts it; where there is no such unit, `llmgw agent`"
        )
    return "start it with `llmgw agent`, or name its socket with --socket"


def _lines(door: socket.socket, patience: float | None) -> Iterator[bytes]:
    """Each line, the last one also where its end is missing; TimeoutError where one is
    not whole in time: what trickles in for ever is no answer either.
    """
    came = bytearray()
    while True:
        end = None if patience is None else time.monotonic() + patience
        seen = 0
        while (at := came.find(b"\n", seen)) < 0 and len(came) <= LARGEST_ANSWER:
            seen = len(came)
            if end is not None:
                door.settimeout(max(end - time.monotonic(), 0.001))
            part = door.recv(65536)
            if not part:
                break
            came += part
        if not came:
            return
        length = at + 1 if at >= 0 else len(came)
        yield bytes(came[:length])
        del came[:length]


def _value(line: bytes, path: Path) -> Any:
    if not line.endswith(b"\n") and len(line) <= LARGEST_ANSWER:
        raise LlmgwError(
            "the agent ended in the middle of its answer",
            where=str(path),
            fix="ask again once it runs",
        )
    try:
        answer = msgspec.json.decode(line, type=_Answer)
    except UNDECODABLE:
        answer = _Answer()
    if isinstance(answer.error, _Error):
        error = answer.error
        raise LlmgwError(error.what, where=error.where, fix=error.fix)
    if answer.value is UNSET:
        raise LlmgwError(
            "what answers here is no agent",
            where=str(path),
            fix="name the agent's socket with --socket",
        )
    return answer.value
