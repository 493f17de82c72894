"""`llmgw survey`: what this machine is, as the agent would report it."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec

from llmgw.agent.inventory import Inventory
from llmgw.agent.resolve import read
from llmgw.cli.check import refused
from llmgw.config.keys import Config
from llmgw.config.load import default_path
from llmgw.errors import ConfigError

WATCH = 2.0


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "survey",
        help="show what this machine is: CPUs, memory, GPUs, network, disks, models",
        description="Runs every probe once and shows what each found, where, and how "
        "long it took. Without a configuration file the defaults are looked at.",
        epilog="example: llmgw survey --json | jq .facts.gpus",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="the configuration file (default: $LLMGW_CONFIG, /etc/llmgw/agent.toml)",
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"survey again every {WATCH:g} s until interrupted",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        config = configuration(arguments.file)
    except ConfigError as error:
        return refused(error, as_json=arguments.json)
    show = print_json if arguments.json else print_text
    if not arguments.watch:
        inventory = Inventory(config)
        anyio.run(inventory.once)
        show(inventory)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(_watch, config, show)
    return 0


def configuration(file: Path | None) -> Config:
    """What is in force; the defaults where no file was named and there is none."""
    if file is None and not default_path().exists():
        return Config(servers=())
    return read(file or default_path(), without_files=True).config


async def _watch(config: Config, show: Any) -> None:
    inventory = Inventory(config)
    while True:
        await inventory.once()
        if show is print_text and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        show(inventory)
        sys.stdout.flush()
        await anyio.sleep(WATCH)


def document(inventory: Inventory) -> dict[str, Any]:
    """The answer of `--json`."""
    return {
        **msgspec.to_builtins(inventory.facts()),
        "problems": msgspec.to_builtins(inventory.problems()),
        "probes": msgspec.to_builtins(inventory.runs()),
    }


def print_json(inventory: Inventory) -> None:
    print(json.dumps(document(inventory), indent=2))


def print_text(inventory: Inventory) -> None:
    """A table on a terminal that rich can draw on, else lines."""
    rows = list(_rows(document(inventory)))
    if sys.stdout.isatty() and _draw(rows):
        return
    for name, source, line in rows:
        print(f"{name:8} {line}" + (f"  [{source}]" if source else ""))


def _draw(rows: list[tuple[str, str, str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table("fact", "what", "from")
    for name, source, line in rows:
        # Text: a name with square brackets is no style.
        table.add_row(name, Text(line), Text(source, style="dim"))
    Console().print(table)
    return True


def _rows(said: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, fact in said["facts"].items():
        took = said["probes"].get(name, {}).get("duration_s", 0.0)
        source = f"{fact['source']}, {took * 1000:.0f} ms"
        if "value" not in fact:
            yield name, source, f"unknown: {fact['reason']}"
            continue
        lines = list(_lines(fact["value"]))
        if fact.get("reason"):
            lines.append(f"({fact['reason']})")
        yield name, source, (lines or ["none"])[0]
        yield from (("", "", line) for line in lines[1:])
    for problem in said["problems"]:
        where = f"{problem['where']}: " if problem.get("where") else ""
        fix = f"; {problem['fix']}" if problem.get("fix") else ""
        yield problem["severity"], problem["code"], f"{where}{problem['what']}{fix}"


def _lines(value: Any) -> Iterator[str]:
    """One line for each entry of a list, one for everything else."""
    if isinstance(value, list):
        for entry in cast("list[Any]", value):
            yield _line(entry)
        return
    rest = dict(value)
    for key in ("gpus", "topology", "missing", "parents"):
        for entry in rest.pop(key, ()):
            yield f"{key}: {_line(entry)}"
    if rest:
        yield _line(rest)


def _line(value: Any) -> str:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return "  ".join(
            f"{key}={_short(key, one)}" for key, one in pairs.items() if key != "now"
        )
    return str(value)


_BYTES = ("total", "limit", "usable", "memory", "size", "free", "swap")


def _short(key: str, value: Any) -> str:
    if isinstance(value, int) and key in _BYTES and value >= 1 << 20:
        return f"{value / (1 << 30):.1f}GiB"
    if isinstance(value, list):
        entries = cast("list[Any]", value)
        return ",".join(_line(one) for one in entries) or "-"
    if isinstance(value, dict):
        return "{" + _line(value) + "}"
    return str(value)
