"""Every key of the file: its type, default, limits and description, written here once.

Durations are seconds and sizes are bytes in here; people write "5s" and "8GiB".
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Duration = Annotated[float, Meta(extra_json_schema={"x-unit": "duration"})]
Size = Annotated[int, Meta(extra_json_schema={"x-unit": "size"})]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file. Strict: an unknown key is a typo."""


class Tls(Section, frozen=True, kw_only=True):
    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    server_name: str | None = None

    @property
    def enabled(self) -> bool:
        return None not in (self.cert_file, self.key_file, self.ca_file)


class Fabric(Section, frozen=True, kw_only=True):
    name: str
    hcas: tuple[str, ...]
    ports: tuple[int, ...] | None = None


class Discovery(Section, frozen=True, kw_only=True):
    prefer_nvml: bool = True
    interval: Duration = 60.0
    probe_timeout: Duration = 10.0
    rescan_models: Duration = 300.0


class LlamaCpp(Section, frozen=True, kw_only=True):
    enabled: bool = True
    path: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    allow_args: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()
    threads: int | None = None


class Vllm(Section, frozen=True, kw_only=True):
    enabled: bool = True
    path: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    allow_args: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()


class Sglang(Section, frozen=True, kw_only=True):
    enabled: bool = True
    path: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    allow_args: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()


class Command(Section, frozen=True, kw_only=True):
    enabled: bool = False
    path: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    allow_args: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()


class Engines(Section, frozen=True, kw_only=True):
    llamacpp: LlamaCpp = LlamaCpp()
    vllm: Vllm = Vllm()
    sglang: Sglang = Sglang()
    command: Command = Command()


class Supervisor(Section, frozen=True, kw_only=True):
    backend: Literal["auto", "process", "systemd"] = "auto"
    stop_grace: Duration = 30.0
    restart_base: Duration = 1.0
    restart_max: Duration = 60.0
    crash_loop_after: int = 5
    start_timeout: Duration = 600.0
    health_interval: Duration = 2.0
    health_timeout: Duration = 5.0
    port_range: str = "20000-20999"
    port_quarantine: Duration = 60.0
    log_max_bytes: Size = 64 * 1024 * 1024
    log_keep: int = 3
    on_stop: Literal["leave", "stop"] = "leave"
    disconnect_stop_after: Duration | None = None


class Mirror(Section, frozen=True, kw_only=True):
    url: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Weights(Section, frozen=True, kw_only=True):
    connections: int = 8
    rate_limit: Size | None = None
    quiet_hours: str | None = None
    cache_limit: Size | None = None
    mirrors: tuple[Mirror, ...] = ()
    hf_token_file: str | None = None
    hf_endpoint: str | None = None


class Link(Section, frozen=True, kw_only=True):
    fail_back_interval: Duration = 300.0
    dial_timeout: Duration = 3.0
    head_start: Duration = 0.3


class Metrics(Section, frozen=True, kw_only=True):
    listen: str | None = None


class Tracing(Section, frozen=True, kw_only=True):
    endpoint: str | None = None


class Config(Section, frozen=True, kw_only=True):
    """What is written, normalised: `server` is folded into `servers`."""

    servers: tuple[str, ...]
    node_id: str | None = None
    hostname: str | None = None
    mgmt_addr: str | None = None
    mgmt_interface: str | None = None
    labels: dict[str, str] = {}
    fabrics: tuple[Fabric, ...] = ()
    heartbeat_interval: Duration = 5.0
    reconnect_base: Duration = 1.0
    reconnect_max: Duration = 30.0
    adopt_ready_timeout: Duration = 60.0
    model_dirs: tuple[str, ...] = ()
    weights_cache: str | None = None
    engines_dir: str = "/opt/llmgw/engines"
    state_dir: str = "/var/lib/llmgw"
    tls: Tls = Tls()
    discovery: Discovery = Discovery()
    engines: Engines = Engines()
    supervisor: Supervisor = Supervisor()
    weights: Weights = Weights()
    link: Link = Link()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
