"""What the control plane did, held against what it should have done."""

import os
import ssl
from collections.abc import AsyncGenerator
from typing import TypeVar, cast

import anyio
import httpx
import msgspec

from llmgw.errors import LlmgwError
from llmgw.handshake import Called, explain
from llmgw.wire import Bye, Line, Refusal, decode_line

T = TypeVar("T")
PROBLEM = "application/problem+json"
PATIENCE = 5.0


class Broken(Exception):
    """The control plane did otherwise."""


class Skipped(Exception):
    """The rule was not looked at."""


OPTIONS = Called(ca="--tls-ca", off="leave out what begins with --tls", name="")


def unreachable(error: Exception, where: str) -> LlmgwError:
    """Why there was no answer at all, in the words that an agent has for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            what, fix = explain(cause, OPTIONS)
            return LlmgwError(what, where=where, fix=fix)
        cause = cause.__cause__ or cause.__context__
    what = f"no answer: {_reason(error)}"
    fix = "is it running there, and is that its address?"
    return LlmgwError(what, where=where, fix=fix)


def _reason(error: BaseException | None) -> str:
    """What the system said, below all that was made of it."""
    said = f"{error}" or type(error).__name__
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            # A name server's numbers are below zero, and asyncio has words of its own.
            number = error.errno or 0
            said = os.strerror(number) if number > 0 else error.strerror
        error = _below(error)
    return said


def _below(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        several = cast("BaseExceptionGroup[BaseException]", error)
        return several.exceptions[0]
    return error.__cause__ or error.__context__


def must(holds: bool, else_seen: str) -> None:
    if not holds:
        raise Broken(else_seen)


def answered(answer: httpx.Response) -> str:
    request = answer.request
    return f"{request.method} {request.url.path} was answered {answer.status_code}"


def done(answer: httpx.Response) -> None:
    must(answer.status_code == 204, f"{answered(answer)}, not 204")


def read(answer: httpx.Response, kind: type[T]) -> T:
    must(answer.status_code == 200, f"{answered(answer)}, not 200")
    return msgspec.json.decode(answer.content, type=kind)


def refused(answer: httpx.Response, status: int, code: str = "") -> Refusal:
    """The refusal; Broken unless it is one, with *status* and *code*."""
    must(answer.status_code == status, f"{answered(answer)}, not {status}")
    kind = answer.headers.get("content-type", "").partition(";")[0]
    must(kind == PROBLEM, f"{status} came as {kind!r}, not {PROBLEM}")
    refusal = msgspec.json.decode(answer.content, type=Refusal)
    must(code in ("", refusal.code), f"{status} has code {refusal.code!r}, not {code}")
    return refusal


async def lines_of(answer: httpx.Response) -> AsyncGenerator[Line]:
    async for line in answer.aiter_lines():
        if decoded := decode_line(line.encode()):
            yield decoded


async def within(lines: AsyncGenerator[Line], seconds: float) -> Line:
    with anyio.move_on_after(seconds):
        async for line in lines:
            return line
        raise Broken("the stream ended")
    raise Broken(f"no line within {seconds:g} s")


async def ends(lines: AsyncGenerator[Line]) -> None:
    with anyio.move_on_after(PATIENCE):
        async for line in lines:
            if isinstance(line, Bye):
                must(line.reason == "replaced", f"bye says {line.reason!r}")
                return
        return
    raise Broken("the old stream goes on")
