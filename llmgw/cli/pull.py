"""`llmgw pull`: fetch weights, and see it happen."""

import argparse
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import msgspec

from llmgw.agent.landing import landing
from llmgw.cli._file import add_config, file_if_any
from llmgw.config import keys
from llmgw.config.load import Loaded, load
from llmgw.config.normalise import WEIGHTS
from llmgw.discovery.node import Here
from llmgw.errors import ConfigError, Fault, WeightsError
from llmgw.files import left_to_owner
from llmgw.weights.fetch import Weights
from llmgw.weights.sources import KINDS, masked
from llmgw.weights.space import shown
from llmgw.wire import Progress

EXAMPLE = """\
example:
  llmgw pull hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF/*q4_k_m.gguf
  llmgw pull https://host/model.gguf --digest sha256:0123… --to /srv/models

What was interrupted is taken up where it was left; what lies complete is not fetched.
"""
# A line in a log every so often says that it lives, and no more.
LINE_EVERY = 5.0

Show = Callable[[Progress], None]
Beside = Callable[[], Coroutine[Any, Any, None]]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "pull",
        help="fetch weights, or anything else that has a digest",
        description="Fetch weights: in parallel, verified, and whole or not at all.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help=KINDS)
    parser.add_argument(
        "--digest",
        metavar="sha256:…",
        help="what it must hash to; over http:// it has to be given",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="there, and not into the cache"
    )
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="an event a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    weights = prepared(arguments.config, arguments.to)
    with left_to_owner(weights.cache):
        return _shown(weights, arguments)


def _shown(weights: Weights, arguments: argparse.Namespace) -> int:
    if arguments.json:
        return _with_events(weights, arguments)
    if sys.stderr.isatty():
        path = _with_a_bar(weights, arguments)
    else:
        path = _with_lines(weights, arguments)
    print(path)
    return 0


def prepared(config: Path | None, to: Path | None) -> Weights:
    """The file's settings and cache; without a file, the defaults."""
    file = file_if_any(config)
    found = None if file is None else load(file)
    settings = found.config.weights if found else keys.Weights()
    if to is not None:
        return Weights(settings, to.absolute(), flat=True, linger=0.0)
    if found is None:
        return Weights(settings, Path(WEIGHTS), linger=0.0)
    model_dirs = tuple(map(Path, found.config.model_dirs))
    return Weights(settings, cache_of(found), model_dirs, linger=0.0)


def cache_of(found: Loaded) -> Path:
    """Where the agent of this node has its weights; ConfigError if it has no place."""
    chosen = landing(found, Here())
    if isinstance(chosen, Fault):
        raise ConfigError((chosen,))
    return Path(chosen)


def _with_lines(weights: Weights, arguments: argparse.Namespace) -> Path:
    lines = Lines(masked(arguments.source))
    return pulled(weights, arguments, lines.show, lines.run)


def pulled(
    weights: Weights, arguments: argparse.Namespace, show: Show, *beside: Beside
) -> Path:
    async def main() -> Path | WeightsError | None:
        outcome: Path | WeightsError | None = None
        async with anyio.create_task_group() as group:
            await group.start(weights.run)
            for part in beside:
                group.start_soon(part)
            try:
                outcome = await weights.ensure(arguments.source, arguments.digest, show)
            except WeightsError as error:
                outcome = error
            group.cancel_scope.cancel()
        return outcome

    outcome = anyio.run(main)
    if isinstance(outcome, WeightsError):
        raise outcome
    assert outcome is not None, "the group ends when there is an outcome"
    return outcome


class Lines:
    """The newest progress: at once, then every so often, also where nothing comes. In
    a log a standstill is what somebody looks for.
    """

    def __init__(self, name: str, every: float = LINE_EVERY) -> None:
        self._name = name
        self._every = every
        self._now: Progress | None = None
        self._said: tuple[float, int] | None = None

    def show(self, progress: Progress) -> None:
        self._now = progress
        if self._said is None:
            self._say(progress)

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._every)
            if self._now is not None:
                self._say(self._now)

    def _say(self, progress: Progress) -> None:
        now, rate = time.monotonic(), ""
        if self._said is not None:
            since, had = self._said
            rate = paced(progress, (progress.done - had) / (now - since))
        self._said = now, progress.done
        print(f"{self._name}: {told(progress)}{rate}", file=sys.stderr, flush=True)


def told(progress: Progress) -> str:
    """One step in words: what, how much of how much."""
    if progress.total is None:
        return f"{progress.what}, {shown(progress.done)}"
    share = 100 * progress.done / progress.total if progress.total else 100
    amount = f"{shown(progress.done)} of {shown(progress.total)}"
    return f"{progress.what}, {amount}, {share:.0f} %"


def paced(progress: Progress, rate: float) -> str:
    """How fast it comes and how long it will take at that, if it comes at all."""
    if rate <= 0:
        return ""
    words = f", {shown(round(rate))}/s"
    if progress.total is not None:
        words += f", {(progress.total - progress.done) / rate:.0f} s to go"
    return words


def _with_a_bar(weights: Weights, arguments: argparse.Namespace) -> Path:
    # Drawing is an extra: a node that only runs the agent does without it.
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError:
        return _with_lines(weights, arguments)
    name = Path(masked(arguments.source)).name
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(binary_units=True),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as drawn:
        task = drawn.add_task(name, total=None)

        def show(step: Progress) -> None:
            drawn.update(
                task,
                completed=step.done,
                total=step.total,
                description=f"{name} {step.what}",
            )

        return pulled(weights, arguments, show)


def _with_events(weights: Weights, arguments: argparse.Namespace) -> int:
    def event(kind: str, **facts: Any) -> None:
        print(msgspec.json.encode({"event": kind, **facts}).decode(), flush=True)

    def show(step: Progress) -> None:
        event("progress", what=step.what, done=step.done, total=step.total)

    try:
        path = pulled(weights, arguments, show)
    except WeightsError as error:
        event("failed", what=error.what, where=error.where, fix=error.fix)
        return error.exit_code
    event("done", path=str(path))
    return 0
