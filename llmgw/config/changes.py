"""What a reload changes, and what only a restart can."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, inspect

from llmgw.config.fields import ROOT, unwrapped
from llmgw.config.keys import Config

# What the link to the control plane is made from: it has to be made anew.
_LINK = (
    "servers",
    "node_id",
    "hostname",
    "labels",
    "mgmt_addr",
    "mgmt_interface",
    "heartbeat_interval",
    "reconnect_base",
    "reconnect_max",
    "tls",
    "link",
)


class Changes(Struct, frozen=True):
    """Keys that differ: in force at once, or after a restart."""

    live: tuple[str, ...]
    needs_restart: tuple[str, ...]

    @property
    def link(self) -> bool:
        """Whether the link to the control plane is to be made anew."""
        return any(key.partition(".")[0] in _LINK for key in self.live)


def changes(old: Config, new: Config) -> Changes:
    live: list[str] = []
    restart: list[str] = []
    for key, is_live in _different(old, new, ROOT, ""):
        (live if is_live else restart).append(key)
    return Changes(tuple(live), tuple(restart))


def _different(
    old: Any, new: Any, kind: inspect.StructType, prefix: str
) -> Iterator[tuple[str, bool]]:
    for field in kind.fields:
        before, after = getattr(old, field.name), getattr(new, field.name)
        inner, hints = unwrapped(field.type)
        name = prefix + field.name
        if isinstance(inner, inspect.StructType):
            yield from _different(before, after, inner, f"{name}.")
        elif before != after:
            yield name, hints.live
