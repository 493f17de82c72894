"""`llmgw survey`: what this machine is, as the agent would report it."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec

from llmgw.agent.inventory import Inventory
from llmgw.agent.resolve import Resolved, read
from llmgw.cli._file import add_file, file_if_any, named_in
from llmgw.cli.check import refused
from llmgw.config.load import unwritten
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
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"survey again every {WATCH:g} s until interrupted",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = resolved(named_in(arguments))
    except ConfigError as error:
        return refused(error, as_json=arguments.json)
    show = print_json if arguments.json else print_text
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(_survey, found, show, arguments.watch)
    return 0


def resolved(file: Path | None) -> Resolved | None:
    """What is in force; None where no file was named and there is none."""
    path = file_if_any(file)
    return None if path is None else read(path, without_files=True)


Show = Callable[[dict[str, Any]], None]


async def _survey(found: Resolved | None, show: Show, watch: bool) -> None:
    inventory = Inventory(found.config if found else unwritten())
    while True:
        await inventory.once()
        if watch and show is print_text and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        show(document(inventory, found))
        sys.stdout.flush()
        if not watch:
            return
        await anyio.sleep(WATCH)


def document(inventory: Inventory, found: Resolved | None) -> dict[str, Any]:
    """The answer of `--json`."""
    return {
        **msgspec.to_builtins(inventory.facts()),
        "management": management(found),
        "problems": msgspec.to_builtins(inventory.problems()),
        "probes": msgspec.to_builtins(inventory.runs()),
    }


def management(found: Resolved | None) -> dict[str, dict[str, str | None]]:
    """The address and interface that engines are reached on, and why those."""
    if found is None:
        return {}
    return {
        name: {
            "value": getattr(found.config, f"mgmt_{name}"),
            "source": found.origin[f"mgmt_{name}"].source,
            "why": found.origin[f"mgmt_{name}"].detail or None,
        }
        for name in ("addr", "interface")
    }


def print_json(said: dict[str, Any]) -> None:
    print(json.dumps(said, indent=2))


def print_text(said: dict[str, Any]) -> None:
    """A table on a terminal that rich can draw on, else lines."""
    rows = list(_rows(said))
    if sys.stdout.isatty() and _draw(rows):
        return
    width = max(len(name) for name, _, _ in rows)
    for name, source, line in rows:
        print(f"{name:{width}} {line}" + (f"  [{source}]" if source else ""))


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
    for name, one in said["management"].items():
        why = ": ".join(filter(None, (one["source"], one["why"])))
        yield f"mgmt_{name}", why, str(one["value"] or "none")
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
