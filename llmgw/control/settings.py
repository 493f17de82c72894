"""What the control plane is started with; `llmgw control --help` says each in words."""

import ipaddress
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct

from llmgw.config.keys import Tls
from llmgw.errors import ConfigError, Fault
from llmgw.wire import HIGHEST_EPOCH

RoleName = Literal["leader", "standby", "follow-file", "etcd"]


class Etcd(Struct, frozen=True, kw_only=True):
    """Where the election is held. *ttl*: how long a silent leader keeps its place."""

    endpoints: tuple[str, ...] = ()
    prefix: str = "llmgw/"
    ttl: int = 5
    tls: Tls = Tls()


class Settings(Struct, frozen=True, kw_only=True):
    """*url*: how agents are told to reach this one; *servers*: told to every agent.

    *leader_url*: what a standby that holds no election says of who leads.
    *register_limit_s*: as long as an agent waits; *register_most*: at a time.
    """

    listen: str
    state_dir: Path
    role: RoleName = "leader"
    role_file: Path | None = None
    desired_file: Path | None = None
    tls: Tls = Tls()
    epoch_floor: int = 0
    heartbeat_s: float = 5.0
    register_limit_s: float = 5.0
    register_most: int = 1000
    url: str | None = None
    leader_url: str | None = None
    servers: tuple[str, ...] = ()
    admin_socket: Path | None = None
    admin_token_file: Path | None = None
    operators: tuple[str, ...] = ()
    etcd: Etcd = Etcd()

    @property
    def lease_s(self) -> float:
        """How long a silent node keeps its session: three heartbeats."""
        return 3 * self.heartbeat_s

    @property
    def token_file(self) -> Path:
        return self.admin_token_file or self.state_dir / "admin.token"


def faults(settings: Settings) -> tuple[Fault, ...]:
    """Everything that contradicts itself, at once."""
    found: list[Fault] = []
    try:
        split_listen(settings.listen)
    except ValueError as error:
        found.append(Fault(what=str(error), key="--listen"))
    if settings.role == "follow-file" and settings.role_file is None:
        found.append(Fault(what="follow-file has no file", fix="add --role-file FILE"))
    if settings.role == "etcd" and not settings.etcd.endpoints:
        found.append(Fault(what="no etcd to elect on", fix="add --etcd URL,URL,URL"))
    found += [
        Fault(
            what=f"{url!r} is not http://HOST:PORT or https://HOST:PORT",
            key="--etcd",
            fix=f"write http://{url.rpartition('://')[2] or 'HOST:2379'}",
        )
        for url in settings.etcd.endpoints
        if not re.fullmatch(r"https?://[^/\s]+", url)
    ]
    if not 1 <= settings.heartbeat_s <= 60:
        found.append(
            Fault(what="must lie between 1 and 60 seconds", key="--heartbeat-s")
        )
    if not 0 <= settings.epoch_floor < HIGHEST_EPOCH:
        what = f"must lie between 0 and {HIGHEST_EPOCH - 1}"
        found.append(Fault(what=what, key="--epoch-floor"))
    if settings.etcd.ttl < 2:
        found.append(Fault(what="must be at least 2 seconds", key="--etcd-ttl"))
    tls = settings.tls
    if any((tls.cert_file, tls.key_file, tls.ca_file)) and not tls.enabled:
        found.append(
            Fault(
                what="TLS needs a certificate, its key and the CA: all three or none",
                fix="give --tls-cert, --tls-key and --tls-ca",
            )
        )
    return tuple(found)


def checked(settings: Settings) -> Settings:
    """*settings* themselves; ConfigError names all that is wrong with them."""
    found = faults(settings)
    if found:
        raise ConfigError(found)
    return settings


def split_listen(listen: str) -> tuple[str, int]:
    """`HOST:PORT`, `[V6]:PORT` or `:PORT` (everywhere); ValueError says what is off."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{listen!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)
    elif ":" in host:
        raise ValueError(f"{listen!r} is an IPv6 address without brackets")
    return host, int(port)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
