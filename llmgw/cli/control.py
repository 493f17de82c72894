"""`llmgw control`: the reference control plane."""

import argparse
import logging
import signal
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.abc

from llmgw.config.keys import Tls
from llmgw.control.server import serve
from llmgw.control.settings import Etcd, RoleName, Settings, checked
from llmgw.telemetry import set_up_logging

log = logging.getLogger(__name__)

EXAMPLE = """\
example:
  llmgw control --listen :7443 --state-dir /var/lib/llmgw-control --role leader \\
    --tls-cert cp1.crt --tls-key cp1.key --tls-ca ca.crt

operators:
  curl --unix-socket /var/lib/llmgw-control/admin.sock http://c/v1/admin/nodes
  curl -H "Authorization: Bearer $(cat /var/lib/llmgw-control/admin.token)" ...
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "control",
        help="run the reference control plane",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help=":PORT is every address")
    add("--state-dir", required=True, type=Path, help="what it keeps; one each")
    add("--role", choices=get_args(RoleName), default="leader", help="who leads")
    add("--role-file", type=Path, help="with follow-file: `leader EPOCH`, `standby`…")
    add("--desired-file", type=Path, help="{node_id: [Replica]}, read again on change")
    add("--tls-cert", help="this control plane's certificate")
    add("--tls-key", help="its key")
    add("--tls-ca", help="the CA that agents' certificates are signed by")
    add("--epoch-floor", type=int, default=0, help="no epoch below this one")
    add(
        "--etcd",
        action="extend",
        type=_listed,
        default=[],
        metavar="URL,URL",
        help="with --role etcd: its members",
    )
    add("--etcd-prefix", default="llmgw/", help="of the keys there (llmgw/)")
    add("--etcd-ttl", type=int, default=5, help="how long a dead leader's lease lasts")
    add("--etcd-cert", help="certificate to show to etcd")
    add("--etcd-key", help="its key")
    add("--etcd-ca", help="the CA of etcd's certificates")
    add("--heartbeat-s", type=float, default=5.0, help="asked of agents (5)")
    add("--url", help="how others reach this one; told by a standby as the leader's")
    add("--leader-url", help="with --role standby: where the leader is")
    add("--server", action="append", default=[], help="told to agents, repeatable")
    add("--admin-socket", type=Path, help="unix socket for operators (state directory)")
    add("--admin-token-file", type=Path, help="made if absent (state directory)")
    add(
        "--operator",
        action="append",
        default=[],
        metavar="NAME",
        help="common name of an operator's certificate, repeatable",
    )
    add("--log-format", choices=("auto", "text", "json"), default="auto")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    set_up_logging(arguments.log_format)
    anyio.run(_main, settings(arguments))
    return 0


def settings(arguments: argparse.Namespace) -> Settings:
    """What was typed. ConfigError names everything that contradicts itself."""
    state_dir: Path = arguments.state_dir
    return checked(
        Settings(
            listen=arguments.listen,
            state_dir=state_dir,
            role=arguments.role,
            role_file=arguments.role_file,
            desired_file=arguments.desired_file,
            tls=Tls(
                cert_file=arguments.tls_cert,
                key_file=arguments.tls_key,
                ca_file=arguments.tls_ca,
            ),
            epoch_floor=arguments.epoch_floor,
            heartbeat_s=arguments.heartbeat_s,
            url=arguments.url,
            leader_url=arguments.leader_url,
            servers=tuple(arguments.server),
            admin_socket=arguments.admin_socket or state_dir / "admin.sock",
            admin_token_file=arguments.admin_token_file,
            operators=tuple(arguments.operator),
            etcd=Etcd(
                endpoints=tuple(url.rstrip("/") for url in arguments.etcd),
                prefix=arguments.etcd_prefix,
                ttl=arguments.etcd_ttl,
                tls=Tls(
                    cert_file=arguments.etcd_cert,
                    key_file=arguments.etcd_key,
                    ca_file=arguments.etcd_ca,
                ),
            ),
        )
    )


def _listed(text: str) -> list[str]:
    return text.split(",")


async def _main(settings: Settings) -> None:
    async with anyio.create_task_group() as group:
        await group.start(_until_told, group.cancel_scope)
        url = await group.start(serve, settings)
        log.info("control plane serves url=%s role=%s", url, settings.role)


async def _until_told(
    scope: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("leaving signal=%s", number.name)
            scope.cancel()
            return
