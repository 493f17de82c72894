"""etcd, by way of the JSON gateway that every member serves.

Keys and values go as base64, 64-bit numbers as text, and what is false, zero or empty
is left out of an answer: a transaction that lost has no `succeeded`.
"""

import base64
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import httpx
from msgspec import Struct

from llmgw.control.etcd_client import Client
from llmgw.errors import LlmgwError
from llmgw.handshake import Called, explain

# What the one who started the control plane has typed.
OPTIONS = Called(ca="--etcd-ca", off="leave out --etcd-ca", name="")


class Kv(Struct, frozen=True):
    """*revision*: that of its last change; *created*: that of its first.

    *lease*: the one it ends with, "" without.
    """

    key: str
    value: bytes
    revision: int
    created: int
    lease: str


class Won(Struct, frozen=True):
    """The lead: ours while *key* exists as it was made in *revision*."""

    key: str
    revision: int


class Etcd:
    """A cluster, asked at whichever member answers. *patience*: seconds for each."""

    def __init__(
        self, client: Client, endpoints: Sequence[str], patience: float
    ) -> None:
        self._client = client
        self._endpoints = list(endpoints)
        self._patience = patience

    async def grant(self, ttl: int) -> str:
        """A new lease; its id."""
        return str((await self._ask("lease/grant", {"TTL": ttl}))["ID"])

    async def keep_alive(self, lease: str) -> int:
        """Seconds that *lease* lasts from now on; 0 if it has ended."""
        answer = await self._ask("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0))

    async def revoke(self, lease: str) -> None:
        await self._ask("lease/revoke", {"ID": lease})

    async def stand(self, key: str, lease: str, value: bytes) -> Kv:
        """Make *key*, to end with *lease*, unless it is there; who holds it now.

        Not the gateway's own `campaign`: one that is cut off withdraws the candidacy
        late, and may withdraw the one that followed it.
        """
        it = coded(key)
        answer = await self._ask(
            "kv/txn",
            {
                "compare": [
                    {
                        "key": it,
                        "target": "CREATE",
                        "result": "EQUAL",
                        "create_revision": "0",
                    }
                ],
                "success": [
                    {"request_put": {"key": it, "value": coded(value), "lease": lease}}
                ],
                "failure": [{"request_range": {"key": it}}],
            },
        )
        if answer.get("succeeded"):
            revision = int(answer["header"]["revision"])
            return Kv(key, value, revision, revision, lease)
        return _kv(answer["responses"][0]["response_range"]["kvs"][0])

    async def get(self, key: str) -> Kv | None:
        found = await self._range({"key": coded(key)})
        return found[0] if found else None

    async def under(self, folder: str) -> list[Kv]:
        """All below *folder*, which ends in a slash."""
        assert folder.endswith("/"), "0 comes after the slash"
        return await self._range(
            {"key": coded(folder), "range_end": coded(folder[:-1] + "0")}
        )

    async def put(self, key: str, value: bytes, *, held: Won | None = None) -> int:
        """Write; the revision of it, or 0 if *held* is held no more."""
        compare = [
            {
                "key": coded(held.key),
                "target": "CREATE",
                "result": "EQUAL",
                "create_revision": str(held.revision),
            }
            for held in ([held] if held else [])
        ]
        answer = await self._ask(
            "kv/txn",
            {
                "compare": compare,
                "success": [
                    {"request_put": {"key": coded(key), "value": coded(value)}}
                ],
            },
        )
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    async def _range(self, body: Mapping[str, Any]) -> list[Kv]:
        answer = await self._ask("kv/range", body)
        return [_kv(found) for found in answer.get("kvs", [])]

    async def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Of the first member that answers; LlmgwError if none does."""
        why: list[str] = []
        for endpoint in tuple(self._endpoints):
            try:
                with anyio.move_on_after(self._patience):
                    return await self._ask_one(f"{endpoint}/v3/{path}", body)
                why.append(f"{endpoint}: no answer within {self._patience:g} s")
            except ssl.SSLError as error:
                # As httpx lets it through: its answer to our certificate, which comes
                # after the handshake.
                why.append(f"{endpoint}: {explain(error, OPTIONS)[0]}")
            except (httpx.HTTPError, ValueError) as error:
                why.append(f"{endpoint}: {error or type(error).__name__}")
            # The next request begins with a member that may be well.
            self._endpoints.append(self._endpoints.pop(0))
        raise LlmgwError("; ".join(why), where="etcd")

    async def _ask_one(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        # The library's own limit has to end it first: where a handshake is cut off from
        # outside, it leaves the connection open.
        answer = await self._client.post(url, body, self._patience * 0.9)
        answer.raise_for_status()
        # A stream's one answer (keepalive) is a line of its own.
        return answer.json()


def _kv(found: Mapping[str, Any]) -> Kv:
    return Kv(
        key=decoded(found["key"]).decode(),
        value=decoded(found.get("value", "")),
        revision=int(found["mod_revision"]),
        created=int(found["create_revision"]),
        lease=str(found.get("lease", "")),
    )


def coded(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return base64.b64encode(raw).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text)
