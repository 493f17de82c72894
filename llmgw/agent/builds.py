"""The engine builds of this node, each asked who it is, once for each change of it.

A program may never return, so each is asked in a child. So are they listed, where the
machine has a mount that may be dead.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from llmgw.config.keys import Config, Engines
from llmgw.discovery import disk, version
from llmgw.discovery.child import Child, Hung
from llmgw.discovery.found import Found, Trouble, clean, known
from llmgw.engines import installed

# A cold vLLM needs longer for its version than any other probe may take.
PATIENCE = 3
# One that was late may only have been cold: it is asked again after this long.
LATE = 600.0


def listed(engines_dir: str, engines: dict[str, Any]) -> Found:
    """What there is, each with a stamp that is another if it changes."""
    settings = msgspec.convert(engines, Engines)
    seen = installed.survey(Path(engines_dir), settings)
    value = [_entry(msgspec.to_builtins(build)) for build in seen.builds]
    troubles = [
        Trouble(one.code, one.what, one.where or "", one.fix or "", one.severity)
        for one in seen.problems
    ]
    return Found(value, "engines_dir, PATH", troubles=tuple(troubles))


def _entry(build: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**build, "stamp": version.stamp(build["binary"])}
    except OSError as error:
        return {**build, "reason": f"cannot be run: {error.strerror}"}


def _mend(name: str) -> str:
    """What helps where the program of the build so called cannot be run."""
    if name == installed.FROM_FILE:
        return "correct engines.KIND.path in the node's file"
    if name == installed.FROM_PATH:
        return "what stands on PATH is another's to mend; install a build beside it"
    return f"`llmgw engines rollback {name}`, or install it anew"


class Builds:
    """Blocks: ask in a thread."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._lists = Child("llmgw.agent.builds", "listed")
        self._asks: dict[str, Child] = {}

    def survey(self, config: Config, kept: dict[str, Any]) -> Found:
        """*kept*: what each program said of itself, by its path and stamp."""
        limit = config.discovery.probe_timeout
        ask: dict[str, Any] = {
            "engines_dir": config.engines_dir,
            "engines": msgspec.to_builtins(config.engines),
        }
        # The child costs more than all other probes together, for what it has to load.
        is_safe = not disk.may_hang(self._root)
        found = (
            clean(listed(config.engines_dir, ask["engines"]))
            if is_safe
            else self._lists.ask(ask, limit)
        )
        if found.value is None:
            return found
        until = time.monotonic() + PATIENCE * limit
        said: dict[str, Any] = {}
        value = [
            self._build(build, kept, said, until)
            for build in cast("list[dict[str, Any]]", found.value)
        ]
        troubles = [
            Trouble("broken_build", one["reason"], one["binary"], _mend(one["name"]))
            for one in value
            if "reason" in one
        ]
        return found._replace(
            value=value, troubles=(*found.troubles, *troubles), memory=said
        )

    def _build(
        self,
        build: dict[str, Any],
        kept: Mapping[str, Any],
        said: dict[str, Any],
        until: float,
    ) -> dict[str, Any]:
        told: dict[str, Any] = {"reason": build.get("reason")}
        if build["version"] is None and "stamp" in build:
            key = f"{build['binary']} {build['stamp']}"
            old = kept.get(key)
            if old is None or old.get("again_at", math.inf) < time.monotonic():
                told = self._ask(build["engine"], build["binary"], until)
            else:
                told = old
            said[key] = told
        return known(
            {
                "name": build["name"],
                "engine": build["engine"],
                "binary": build["binary"],
                "version": build["version"] or told.get("version"),
                "features": build["features"] or told.get("features") or [],
                "digest": build["digest"],
                "rpc": build["rpc_binary"] is not None,
                "reason": told.get("reason"),
            }
        )

    def _ask(self, kind: str, binary: str, until: float) -> dict[str, Any]:
        """What a program says of itself, to be remembered."""
        left = until - time.monotonic()
        if left <= 0:  # others have used up the time; the next survey asks it
            return {"reason": "not asked yet: others were late", "again_at": 0.0}
        child = self._asks.setdefault(
            binary, Child("llmgw.discovery.version", "ask", is_bare=True)
        )
        try:
            found = child.ask({"kind": kind, "binary": binary}, left)
        except Hung as late:
            since = time.monotonic() - late.since
            why = f"--version has not answered for {since:.0f} s"
            if child.is_stuck:
                why += ", and it cannot be ended: it sleeps in a driver or on a mount"
            return {"reason": why, "again_at": time.monotonic() + LATE}
        return {"reason": found.reason} if found.value is None else found.value
