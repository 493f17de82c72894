"""llmgw pki: a small certificate authority for tests and small sites."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from llmgw import pki
from llmgw.cli._file import named
from llmgw.errors import TlsError

EXAMPLE = """\
example:
  llmgw pki --dir pki init
  llmgw pki --dir pki issue cp1 --san cp1.example --san 10.0.0.1
  llmgw pki --dir pki issue node-17 --days 30
  llmgw pki --dir pki bundle node-17 > node-17.tar
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # pyright: ignore[reportPrivateUsage] -- it has no public name
    parser = commands.add_parser(
        "pki",
        help="make certificates for tests and small sites",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run)
    _add_options(parser, Path("pki"), is_json=False)
    actions = parser.add_subparsers(dest="action", required=True)
    init = actions.add_parser("init", help="make a new authority")
    init.add_argument("--name", default="llmgw", help="its name (llmgw)")
    init.add_argument("--days", type=float, default=3650.0, help="how long it lasts")
    issue = actions.add_parser("issue", help="make a certificate for a node")
    issue.add_argument("node", help="its node_id: the certificate's common name")
    issue.add_argument(
        "--san", action="append", default=[], help="a name or address it is reached at"
    )
    issue.add_argument(
        "--days", type=float, default=90.0, help="how long it lasts (90)"
    )
    for action in (init, issue):
        action.add_argument(
            "--force", action="store_true", help="replace what is there"
        )
    bundle = actions.add_parser(
        "bundle", help="write a node's files as a tar to stdout"
    )
    bundle.add_argument("node", help="whose")
    for action in (init, issue, bundle):  # behind the verb as well as before it
        _add_options(action, argparse.SUPPRESS, is_json=argparse.SUPPRESS)


def _add_options(parser: Any, folder: Path | str, *, is_json: bool | str) -> None:
    """And what stands where they are not said: nothing new behind a verb."""
    parser.add_argument(
        "--dir", type=Path, default=folder, help="the authority's folder (./pki)"
    )
    parser.add_argument(
        "--json", action="store_true", default=is_json, help="print facts as JSON"
    )


def _run(args: argparse.Namespace) -> int:
    with named():
        return run(args)


def run(args: argparse.Namespace) -> int:
    if args.action == "bundle":
        if sys.stdout.isatty():
            raise TlsError("a tar is not for a terminal", fix="add > FILE.tar")
        sys.stdout.buffer.write(pki.bundle(args.dir, args.node))
        return 0
    if args.action == "init":
        made = pki.init(args.dir, name=args.name, days=args.days, force=args.force)
    else:
        made = pki.issue(
            args.dir,
            args.node,
            sans=tuple(args.san),
            days=args.days,
            force=args.force,
        )
    facts = {
        "cert_file": str(made.cert_file),
        "key_file": str(made.key_file),
        "ca_file": str(made.ca_file),
        "sha256": pki.fingerprint(made.cert_file),
    }
    if args.json:
        print(msgspec.json.encode(facts).decode())
    else:
        for name, value in facts.items():
            print(f"{name:<10}{value}")
    return 0
