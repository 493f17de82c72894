"""How a request is refused: RFC 9457 problem documents with the protocol's codes."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from llmgw.errors import LlmgwError
from llmgw.wire import Refusal

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"

_CODES: dict[str, type[web.HTTPError]] = {
    "malformed": web.HTTPBadRequest,
    "not_allowed": web.HTTPUnauthorized,
    "identity_mismatch": web.HTTPForbidden,
    "unknown_session": web.HTTPNotFound,
    "unknown_node": web.HTTPNotFound,
    "node_in_use": web.HTTPConflict,
    "stale_epoch": web.HTTPConflict,
    "changed": web.HTTPConflict,
    "not_leader": web.HTTPMisdirectedRequest,
    "invalid": web.HTTPUnprocessableEntity,
    "protocol": web.HTTPUpgradeRequired,
    "busy": web.HTTPServiceUnavailable,
    "no_answer": web.HTTPGatewayTimeout,
}


def refused(code: str, detail: str, **more: Any) -> web.HTTPError:
    """The refusal with *code*, to be raised; *more*: fields of the document."""
    return _refused(_CODES[code], code, detail, **more)


def too_many(detail: str, retry_after_s: float) -> web.HTTPError:
    """Also `busy`, but for the number of those who ask: one at a time is welcome."""
    kind = web.HTTPTooManyRequests
    return _refused(kind, "busy", detail, retry_after_s=retry_after_s)


def _refused(
    kind: type[web.HTTPError], code: str, detail: str, **more: Any
) -> web.HTTPError:
    body = {"code": code, "detail": detail, "status": kind.status_code, **more}
    text = msgspec.json.encode(body).decode()
    error = kind(text=text)
    # As it is registered: JSON has no charset parameter.
    error.headers["Content-Type"] = PROBLEM
    return error


def refusal(what: Refusal) -> web.HTTPError:
    return refused(what.code, what.detail)


async def content(request: web.Request) -> bytes:
    """The whole body of *request*; raises the refusal that says why there is none."""
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise refused("malformed", f"the body cannot be unpacked: {error}") from error
    except ConnectionError as error:
        # Of an agent that was killed meanwhile; nobody is there to read it.
        raise refused("malformed", "the body ends in its middle") from error


@web.middleware
async def as_problems(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Also what the HTTP library refuses by itself is a problem document."""
    try:
        return await handler(request)
    except LlmgwError as error:
        # The disk is full, say: for the one who asked, and for the log.
        log.warning("request not served path=%s error=%s", request.path, error)
        raise refused("busy", error.what, retry_after_s=1) from error
    except web.HTTPError as error:
        if error.content_type == PROBLEM:
            raise
        body = {
            "code": "http",
            "detail": f"{request.method} {request.path}: {error.reason}",
            "status": error.status,
        }
        headers = {k: v for k, v in error.headers.items() if k == "Allow"}
        return web.Response(
            status=error.status,
            headers=headers,
            body=msgspec.json.encode(body),
            content_type=PROBLEM,
        )
