"""`llmgw engines`: the builds on this node, and the replicas that run."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from llmgw.agent.door import ask, ask_once
from llmgw.cli._file import add_config, add_file, file_if_any, named, named_in
from llmgw.cli._logs import is_without_agent
from llmgw.cli._logs import read as read_log
from llmgw.cli._socket import add_socket, understood
from llmgw.config import keys, load
from llmgw.engines.install import Wish, install, roll_back
from llmgw.engines.installed import survey
from llmgw.engines.place import Build
from llmgw.errors import LlmgwError
from llmgw.files import left_to_owner

EXAMPLES = """\
examples:
  llmgw engines list
  llmgw engines install https://example.org/llama-b10434.tgz --sha256 SUM
  llmgw engines logs -f qwen-0
"""
_AN_ID = "the replica's, as `llmgw status` and `llmgw plan` show it"
_GET_ONE = "`llmgw engines install URL --sha256 SUM`"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "engines",
        help="engine builds: list, install, roll back; replicas: stop, start, logs",
        description="The engine builds on this node, and the replicas that run here.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _add_builds(verbs)
    for verb, run, said in (
        ("stop", _stop, "stop a replica, whatever is wanted, until it is started here"),
        ("start", _start, "let a replica run again that was stopped here"),
        ("logs", _logs, "what a replica has written, also where no agent runs"),
    ):
        example = f"example: llmgw engines {verb} qwen-0"
        local = verbs.add_parser(verb, help=said, description=said, epilog=example)
        local.add_argument("replica", metavar="ID", type=_id, help=_AN_ID)
        add_socket(local)
        if verb == "logs":
            add_config(local)
            local.add_argument(
                "-f", "--follow", action="store_true", help="and what comes"
            )
        local.set_defaults(run=run)


def _id(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; `llmgw status` shows the ids")
    return text


def _add_builds(verbs: Any) -> None:
    listing = verbs.add_parser("list", help="the builds on this node")
    add_file(listing)
    listing.add_argument("--json", action="store_true", help="as the facts say it")
    listing.set_defaults(run=_list)
    adding = verbs.add_parser(
        "install",
        help="fetch a build, verify it, and publish it under a name",
        epilog="example: llmgw engines install https://example.org/b1.tgz --sha256 SUM",
    )
    adding.add_argument(
        "url", metavar="URL", help="of a tar, zip or wheel, or its file"
    )
    adding.add_argument("--sha256", metavar="SUM", required=True, help="of the archive")
    adding.add_argument("--name", help="how replicas name it; else as its file is")
    adding.add_argument("--engine", help="for an archive without manifest.json")
    adding.add_argument("--binary", help="its program, for one without manifest.json")
    adding.set_defaults(run=_install)
    back = verbs.add_parser(
        "rollback", help="let a name mean the build that it meant before"
    )
    back.add_argument("name", metavar="NAME")
    back.set_defaults(run=_roll_back)
    for parser in (adding, back):
        add_socket(parser)
        add_config(parser)
    for parser in (listing, adding, back):
        parser.add_argument(
            "--engines-dir", type=Path, help="instead of the one that the file names"
        )


def _where(arguments: argparse.Namespace) -> tuple[Path, keys.Engines]:
    """Where builds are, and what the file says of engines; the defaults on a machine
    that has no file yet.
    """
    file = file_if_any(named_in(arguments))
    config = load.unwritten() if file is None else load.load(file).config
    return arguments.engines_dir or Path(config.engines_dir), config.engines


def _list(arguments: argparse.Namespace) -> int:
    where = _where(arguments)
    found = survey(*where)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return 0
    head = [("NAME", "ENGINE", "VERSION", "PROGRAM")] if found.builds else []
    rows = [*head, *map(_row, found.builds)]
    widths = [max((len(row[n]) for row in rows), default=0) for n in range(3)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]))
    for problem in found.problems:
        fix = f"\n  fix: {problem.fix}" if problem.fix else ""
        print(f"warning: {problem.where}: {problem.what}{fix}", file=sys.stderr)
    if not found.builds:
        print(f"none in {where[0]}, nor on PATH\n  fix: {_GET_ONE}", file=sys.stderr)
    return 0


def _row(build: Build) -> tuple[str, str, str, str]:
    return build.name, build.engine, build.version or "-", build.binary


def _install(arguments: argparse.Namespace) -> int:
    url = arguments.url
    if "://" not in url:
        url = Path(url).resolve().as_uri()
    name = arguments.name or url.rpartition("/")[2].partition(".")[0]
    if not name:
        raise LlmgwError(
            "names no file that a build could be called after",
            where=url,
            fix="give the address of the archive, or the build's name with --name",
        )
    wish = Wish(
        name=name,
        url=url,
        sha256=arguments.sha256,
        engine=arguments.engine,
        binary=arguments.binary,
    )
    folder, _ = _where(arguments)
    with left_to_owner(folder):
        build = anyio.run(partial(install, wish, folder))
    _tell_agent(arguments)
    print(f"{build.name}: {build.engine} {build.version or ''} {build.binary}")
    return 0


def _roll_back(arguments: argparse.Namespace) -> int:
    with named():
        folder, _ = _where(arguments)
        with left_to_owner(folder):
            build = roll_back(folder, arguments.name)
    _tell_agent(arguments)
    print(f"{build.name}: {build.engine} {build.version or ''} {build.binary}")
    return 0


def _tell_agent(arguments: argparse.Namespace) -> None:
    """The agent, if one runs, would notice by itself at its next survey."""
    try:
        ask_once(arguments.socket, "builds_changed")
    except LlmgwError:
        pass  # none runs here, or one that is not ours to ask


def _stop(arguments: argparse.Namespace) -> int:
    name = arguments.replica
    answer = ask_once(arguments.socket, "stop", replica=name)
    with understood(arguments.socket):
        does = "is being stopped" if answer["is_ending"] else "does not run"
    print(f"{name} {does}; `llmgw engines start {name}` lets it run again")
    return 0


def _start(arguments: argparse.Namespace) -> int:
    answer = ask_once(arguments.socket, "start", replica=arguments.replica)
    with understood(arguments.socket):
        was_held, drain = answer["was_held"], answer["drain"]
    name = arguments.replica
    if was_held:
        print(f"{name} may run")
    else:
        print(f"{name} was not stopped by a person: nothing has changed")
    if drain:
        print("this node drains and starts nothing; `llmgw undrain` ends it")
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    patience = None if arguments.follow else 10.0
    said = ask(
        arguments.socket,
        "logs",
        patience=patience,
        replica=arguments.replica,
        follow=arguments.follow,
    )
    is_silent = True
    try:
        for text in said:
            print(text, end="", flush=True)
            is_silent = is_silent and not text
    except LlmgwError as error:
        if not is_without_agent(error):
            raise
        read_log(arguments, error)
        return 0
    if is_silent:
        replica = arguments.replica
        waits = f"`llmgw engines logs -f {replica}` waits for it"
        print(f"{replica} has written nothing yet; {waits}", file=sys.stderr)
    return 0
