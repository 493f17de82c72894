"""What a person can ask through the local door."""

import codecs
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmgw import version
from llmgw.agent import kept
from llmgw.agent.door import Answers, Request, once
from llmgw.agent.run import Agent
from llmgw.agent.view import Answer
from llmgw.agent.waiting import waiting
from llmgw.errors import LlmgwError
from llmgw.reconcile import Action, Keep, Start, Stop
from llmgw.wire import Ask, Probe


class Ops:
    """The ops of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def table(self) -> dict[str, Answers]:
        return {
            "status": once(self._status),
            "plan": once(self._plan),
            "survey": once(self._survey),
            "builds_changed": once(self._builds_changed),
            "drain": once(self._drain),
            "undrain": once(self._undrain),
            "stop": once(self._stop),
            "start": once(self._start),
            "reload": once(self._reload),
            "forget_epoch": once(self._forget_epoch),
            "probe": once(self._probe),
            "logs": self._logs,
        }

    def answers(self) -> dict[str, Answer]:
        """What a control plane may ask, beside what is sent to it anyway."""
        return {"log_tail": self._log_tail, "survey": self._survey_for_control}

    async def _status(self, _request: Request) -> dict[str, Any]:
        agent = self._agent
        link = agent.link.status.value
        return {
            "node_id": agent.resolved.config.node_id,
            "version": version(),
            "link": {
                **msgspec.to_builtins(link),
                "since": anyio.current_time() - link.since,
            },
            "draining": self._draining() is not None,
            "drain": self._draining(),
            "engines_held": agent.supervisor.mode,
            "file": agent.resolved.file,
            "fetching": msgspec.to_builtins(agent.weights.fetching),
            "rev_applied": agent.view.rev_applied,
            "replicas": msgspec.to_builtins(agent.view.statuses()),
            "held": self._held(),
            "waits": self._waits(agent.plan()),
            "problems": msgspec.to_builtins(
                (*agent.view.problems(), *agent.link.problems())
            ),
        }

    async def _plan(self, _request: Request) -> list[dict[str, Any]]:
        """What is done now, then what is wanted and waits, with the reason.

        LlmgwError while it is not known what is wanted: that is not nothing.
        """
        agent = self._agent
        if agent.desired is None:
            raise LlmgwError(
                "no control plane has said yet what is wanted here",
                fix="`llmgw status` says how the link stands",
            )
        said = {Start: "start", Stop: "stop", Keep: "keep"}
        actions = agent.plan()
        return [
            *({"action": said[type(one)], "name": one.name} for one in actions),
            *self._waits(actions),
        ]

    def _waits(self, actions: tuple[Action, ...]) -> list[dict[str, Any]]:
        """What is wanted and gets none of *actions*, with the reason."""
        agent = self._agent
        if agent.desired is None:
            return []
        waits = waiting(
            agent.desired.wanted,
            agent.supervisor.statuses(),
            actions,
            held=agent.person.stopped,
            draining=agent.draining() is not None,
        )
        return [msgspec.to_builtins(one) for one in waits]

    async def _survey(self, _request: Request) -> Any:
        return msgspec.to_builtins(self._agent.view.facts())

    async def _builds_changed(self, _request: Request) -> bool:
        self._agent.inventory.refresh("builds")
        return True

    def _draining(self) -> Any:
        return msgspec.to_builtins(self._agent.draining())

    def _held(self) -> list[str]:
        return [one.replica.id for one in self._agent.person.held()]

    async def _drain(self, request: Request) -> Any:
        """What is so now: who wants it, and when it ends."""
        try:
            drain = msgspec.convert(request, kept.Drain)
        except msgspec.ValidationError as error:
            limits = f"from 0 to {kept.LONGEST:.0f}"
            raise LlmgwError(f"stop_after is no number of seconds {limits}") from error
        await self._agent.person.drain(drain.stop_after)
        return self._draining()

    async def _undrain(self, _request: Request) -> dict[str, Any]:
        """What was so before, and what does not start for all that."""
        agent, before = self._agent, self._draining()
        wanted = bool(agent.desired and agent.desired.drain)
        await agent.person.undrain(wanted=wanted)
        return {"drain": before, "held": self._held()}

    async def _stop(self, request: Request) -> dict[str, bool]:
        """Whether a process still has to end for that."""
        name = _name(request)
        await self._agent.person.hold(name, held=True)
        here = self._agent.supervisor.statuses()
        is_ending = any(
            one.id == name and one.pid is not None and one.state != "stopped"
            for one in here
        )
        return {"is_ending": is_ending}

    async def _start(self, request: Request) -> dict[str, Any]:
        """Whether a person held it, and what holds it still."""
        was_held = await self._agent.person.hold(_name(request), held=False)
        return {"was_held": was_held, "drain": self._draining()}

    async def _reload(self, _request: Request) -> bool:
        await self._agent.reload()
        return True

    async def _forget_epoch(self, _request: Request) -> bool:
        await self._agent.link.forget_epoch()
        return True

    async def _probe(self, request: Request) -> Any:
        try:
            probe = msgspec.convert(request, Probe)
        except msgspec.ValidationError as error:
            raise LlmgwError(f"a probe needs an address and a port: {error}") from error
        found = await self._agent.link.probe(probe.address, probe.port)
        return msgspec.to_builtins(found)

    async def _logs(self, request: Request) -> AsyncIterator[str]:
        """The end of a replica's log, then what comes, if it is to be followed."""
        name = await self._with_log(_name(request))
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        log = self._agent.supervisor.log(name, follow=bool(request.get("follow")))
        async with aclosing(log):
            async for piece in log:
                yield decoder.decode(piece)

    async def _log_tail(self, ask: Ask) -> bytes:
        """For a control plane: the end of one replica's log."""
        name = await self._with_log(_name(ask.args))
        async with aclosing(self._agent.supervisor.log(name)) as log:
            return b"".join([piece async for piece in log])

    async def _with_log(self, name: str) -> str:
        """*name*, if it has a log or will have one. LlmgwError names those that have.

        It becomes a path, and whoever asks for a log gets no other file.
        """
        supervisor = self._agent.supervisor
        logged = await anyio.to_thread.run_sync(supervisor.logged)
        known = self._agent.person.known()
        if name in known.union(logged) and "/" not in name:
            return name
        folder = supervisor.log_path("x").parent
        said = [f"in {folder} are logs of {', '.join(logged) or 'none'}"]
        if silent := sorted(known.difference(logged)):
            said.append(f"not yet of {', '.join(silent)}")
        raise LlmgwError(
            f"{name[:80]!r} is not the name of a replica that is wanted or ran here",
            fix="; ".join(said),
        )

    async def _survey_for_control(self, _ask: Ask) -> bytes:
        return msgspec.json.encode(self._agent.view.facts())


def _name(request: Request) -> str:
    name = request.get("replica")
    if not isinstance(name, str) or not name.strip():
        fix = "`llmgw status` shows the ids"
        raise LlmgwError("a replica has to be named", fix=fix)
    return name
