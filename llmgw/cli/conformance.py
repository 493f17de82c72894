"""`llmgw conformance`: does a control plane keep the rules of the protocol?"""

import argparse
import secrets
import ssl
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec

from llmgw import tls
from llmgw.config.address import Complaint, parse, shown, with_scheme
from llmgw.conformance.played import Conformance, Options, Verdict
from llmgw.errors import ConfigError, Fault

EXAMPLE = """\
example:
  llmgw conformance http://127.0.0.1:7443
  llmgw conformance https://cp1:7443 --tls-cert n1.crt --tls-key n1.key --tls-ca ca.crt
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "conformance",
        help="play an agent against a control plane, a line for each rule",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", help="the control plane, which has to lead")
    add("--tls-cert", type=Path, help="a certificate; its common name is the node_id")
    add("--tls-key", type=Path, help="its key")
    add("--tls-ca", type=Path, help="the CA of the control plane's certificate")
    add("--slow", action="store_true", help="also wait for a lease of more than 20 s")
    add("--step-down", action="store_true", help="also try what ends its lead")
    add("--json", action="store_true", help="a JSON object for each rule")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    verdicts: list[Verdict] = []

    def told(verdict: Verdict) -> None:
        verdicts.append(verdict)
        line = _line(verdict)
        if arguments.json:
            line = msgspec.json.encode(verdict).decode()
        print(line, flush=True)

    context, node_id = _identity(arguments)
    options = Options(
        node_id=node_id,
        has_tls=context is not None,
        step_down=arguments.step_down,
        longest_lease=600.0 if arguments.slow else 20.0,
    )
    anyio.run(
        _main, _address(arguments.url, context is not None), context, options, told
    )
    failed = sum(verdict.outcome == "fail" for verdict in verdicts)
    if not arguments.json:
        print(f"\n{len(verdicts) - failed} of {len(verdicts)} hold or were skipped")
    return 1 if failed else 0


async def _main(
    url: str, context: ssl.SSLContext | None, options: Options, told: Any
) -> None:
    async with httpx.AsyncClient(
        base_url=url,
        verify=context or True,
        timeout=httpx.Timeout(5.0, read=None),
        trust_env=False,
    ) as client:
        await Conformance(client, options).run(told)


def _identity(arguments: argparse.Namespace) -> tuple[ssl.SSLContext | None, str]:
    files = (arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    if not any(files):
        return None, f"conformance-{secrets.token_hex(4)}"
    options = ("--tls-cert", "--tls-key", "--tls-ca")
    missing = [name for name, file in zip(options, files, strict=True) if file is None]
    if missing:
        what = "TLS needs a certificate, its key and the CA: all three or none"
        fix = f"give {' and '.join(missing)} as well"
        raise ConfigError((Fault(what=what, key="--tls", fix=fix),))
    pair = tls.read(*files)
    return pair.context, pair.certificate.common_name


def _address(text: str, has_tls: bool) -> str:
    """ConfigError says what is off with it."""
    whole = text if "://" in text else with_scheme(text, has_tls)
    found = parse(whole) if isinstance(whole, str) else whole
    if isinstance(found, Complaint):
        what = f"{shown(text)} {found.what}"
        raise ConfigError((Fault(what=what, fix=found.fix),))
    if has_tls and found.text.startswith("http:"):
        what = "is an http:// address, and certificates are given"
        fix = f"write https{found.text.removeprefix('http')}"
        raise ConfigError((Fault(what=what, key=shown(text), fix=fix),))
    return found.text


def _line(verdict: Verdict) -> str:
    why = f": {verdict.why}" if verdict.why else ""
    return f"{verdict.outcome:4}  {verdict.rule:9}  {verdict.claim}{why}"
