"""`llmgw schema`: the keys of the file, as a schema, a page or an example."""

import argparse
import sys
from typing import Any

from llmgw.config.document import example, markdown
from llmgw.config.schema import json_schema

FORMATS = {"json-schema": json_schema, "markdown": markdown, "example-toml": example}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "schema",
        help="print the keys of the file: schema, documentation or an example",
        epilog="example: llmgw schema --format example-toml > agent.toml",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="json-schema",
        help="json-schema (for editors and Nix), markdown, or example-toml",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(FORMATS[arguments.format]())
    return 0
