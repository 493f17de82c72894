"""`llmgw doctor`: what keeps this node from serving, and what to do about it."""

import argparse
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec

from llmgw import version
from llmgw.agent import bundle, door
from llmgw.agent.doctor import examine, examine_without
from llmgw.agent.finding import Finding
from llmgw.agent.inventory import Inventory
from llmgw.agent.resolve import Resolved, read
from llmgw.cli._file import add_file, file_of
from llmgw.config.dump import dump, without_secrets
from llmgw.config.load import unwritten
from llmgw.errors import ConfigError, LlmgwError

_SIGNS = {
    "ok": "ok     ",
    "warning": "warning",
    "fault": "FAULT  ",
    "skipped": "skipped",
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check everything that this node needs, and say what to do",
        description="Looks at the configuration, certificates, control planes, "
        "addresses, GPUs, adapters, folders, engines, ports and the unit. A line for "
        "each: what was seen, and a fix where it is not well. Exit status 1 if there "
        "is a fault.",
        epilog="example: llmgw doctor --bundle /tmp/node.tar.gz",
    )
    add_file(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the findings as JSON"
    )
    parser.add_argument(
        "--bundle",
        metavar="PATH",
        type=Path,
        help="also write an archive of what was found, with secrets masked",
    )
    parser.add_argument(
        "--socket", metavar="PATH", type=Path, help="the agent's socket"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    show = None if arguments.json else print_line
    # What it logs is said by the findings: without a handler Python would write it in
    # between them.
    logging.getLogger("llmgw").addHandler(logging.NullHandler())
    found: Resolved | None = None
    try:
        found = read(file_of(arguments), without_files=True)
    except ConfigError as error:
        said = examine_without(error, os.environ)
    else:
        said = examine(found, arguments.socket or door.default_path(), os.environ)
    findings = anyio.run(_examined, said, show)
    if arguments.json:
        print(json.dumps(document(findings), indent=2))
    if arguments.bundle is not None:
        _bundle(arguments.bundle, findings, found)
    return int(any(one.verdict == "fault" for one in findings))


async def _examined(
    finding_by_finding: AsyncIterator[Finding], show: Any
) -> list[Finding]:
    findings: list[Finding] = []
    async for said in finding_by_finding:
        # What programs say of themselves is in it; and people show it to others.
        finding = msgspec.structs.replace(
            said, evidence=bundle.masked(said.evidence), fix=bundle.masked(said.fix)
        )
        findings.append(finding)
        if show is not None:
            show(finding)
    return findings


def document(findings: list[Finding]) -> dict[str, Any]:
    """The answer of `--json`."""
    return {
        "ok": not any(one.verdict == "fault" for one in findings),
        "findings": msgspec.to_builtins(findings),
    }


def print_line(finding: Finding) -> None:
    print(f"{_SIGNS[finding.verdict]} {finding.check}: {finding.evidence}")
    if finding.fix and finding.verdict != "ok" and finding.fix not in finding.evidence:
        print(f"        fix: {finding.fix}")
    sys.stdout.flush()


def _bundle(path: Path, findings: list[Finding], found: Resolved | None) -> None:
    documents: dict[str, Any] = {
        "version.txt": f"llmgw {version()}\npython {sys.version}\n",
        "findings.json": document(findings),
    }
    # Also where the file is wrong: what the machine is does not hang on it.
    inventory = Inventory(found.config if found else unwritten())
    anyio.run(inventory.once)
    documents["facts.json"] = inventory.facts()
    if found is not None:
        documents["settings.toml"] = dump(without_secrets(found.config))
    try:
        bundle.write(path, documents)
    except OSError as error:
        raise LlmgwError(
            f"cannot be written: {error.strerror}", where=str(path)
        ) from error
    print(f"wrote {path}: read it before you send it", file=sys.stderr)
