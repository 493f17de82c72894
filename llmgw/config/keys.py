"""Every key of the file: its type, default, limits and description, written here once.

Durations are seconds and sizes are bytes in here; people write "5s" and "8GiB". The
NixOS options, docs/configuration.md and the example file are made from this file, and
`make generate` writes them anew.
"""

from typing import Annotated

from msgspec import field

from llmgw.config.describe import Duration, Path, Secret, Section, key
from llmgw.config.engine_keys import (
    Command,
    Engine,
    Engines,
    LlamaCpp,
    Sglang,
    Supervisor,
    Vllm,
)
from llmgw.config.weights_keys import Mirror, Weights

# The whole file format is to be had from here, wherever its parts are written.
__all__ = [
    "Command",
    "Config",
    "Discovery",
    "Engine",
    "Engines",
    "Fabric",
    "Link",
    "LlamaCpp",
    "Metrics",
    "Mirror",
    "Sglang",
    "Supervisor",
    "Tls",
    "Tracing",
    "Vllm",
    "Weights",
]


class Tls(Section, frozen=True, kw_only=True):
    """Mutual TLS with the control plane: all three files or none."""

    cert_file: Annotated[
        Secret | None,
        key(
            "This node's certificate (PEM, with intermediates). Its common name is the "
            "node_id. Read again when the file changes.",
            example="/etc/llmgw/tls/node.crt",
            kind="path",
            live=True,
        ),
    ] = None
    key_file: Annotated[
        Secret | None,
        key(
            "The private key of cert_file (PEM, not encrypted).",
            example="/etc/llmgw/tls/node.key",
            kind="path",
            live=True,
        ),
    ] = None
    ca_file: Annotated[
        Secret | None,
        key(
            "The certificates that may sign a control plane's. Only these are trusted, "
            "not the system's.",
            example="/etc/llmgw/tls/ca.crt",
            kind="path",
            live=True,
        ),
    ] = None
    server_name: Annotated[
        str | None,
        key(
            "The name a control plane's certificate must carry. Unset: the host in its "
            "address.",
            example="cp.example",
            kind="name",
            live=True,
        ),
    ] = None

    @property
    def enabled(self) -> bool:
        return None not in (self.cert_file, self.key_file, self.ca_file)


class Fabric(Section, frozen=True, kw_only=True):
    """One InfiniBand or RoCE network, and the adapters of this node that are on it."""

    name: Annotated[
        str, key("Its name, the same on every node.", example="rail0", kind="name")
    ]
    hcas: Annotated[
        tuple[str, ...],
        key("Adapters on it, as in /sys/class/infiniband.", example=["mlx5_0"]),
    ]
    ports: Annotated[
        tuple[int, ...] | None,
        key(
            "The ports of those adapters. Unset: every port.",
            example=[1],
            low=1,
            high=255,
        ),
    ] = None


class Discovery(Section, frozen=True, kw_only=True):
    """How this node finds out what it is."""

    prefer_nvml: Annotated[
        bool,
        key(
            "Ask NVML about GPUs first; false asks nvidia-smi first. What neither "
            "answers is read from PCI."
        ),
    ] = True
    interval: Annotated[
        Duration, key("Time between two surveys.", example="60s", low=1, live=True)
    ] = 60.0
    probe_timeout: Annotated[
        Duration,
        key(
            "How long a probe may take; after that the last answer stands, with its "
            "age.",
            low=0.1,
            live=True,
        ),
    ] = 10.0
    rescan_models: Annotated[
        Duration,
        key(
            "Time between two full scans of model_dirs; 0s: only at start.",
            low=0,
            live=True,
        ),
    ] = 300.0


class Link(Section, frozen=True, kw_only=True):
    """How control planes are dialled."""

    fail_back_interval: Annotated[
        Duration,
        key(
            "How often servers further up the list are looked at while connected to a "
            "later one; 0s: never.",
            low=0,
            live=True,
        ),
    ] = 300.0
    dial_timeout: Annotated[
        Duration, key("How long connecting may take.", low=0.01, live=True)
    ] = 3.0
    head_start: Annotated[
        Duration,
        key(
            "A server silent for so long has the next tried beside it.",
            low=0,
            live=True,
        ),
    ] = 0.3


class Metrics(Section, frozen=True, kw_only=True):
    """Numbers for Prometheus."""

    listen: Annotated[
        str | None,
        key(
            "Address and port of /metrics. Unset: not served.",
            example="127.0.0.1:9464",
            kind="listen",
        ),
    ] = None


class Tracing(Section, frozen=True, kw_only=True):
    """Traces for a collector."""

    endpoint: Annotated[
        str | None,
        key(
            "OTLP over HTTP. Unset: nothing is traced.",
            example="http://127.0.0.1:4318",
            kind="url",
        ),
    ] = None


class Config(Section, frozen=True, kw_only=True):
    """What is written, normalised: `server` is folded into `servers`."""

    servers: Annotated[
        tuple[str, ...],
        key(
            "Control planes in order of preference: HOST[:PORT] or a whole address. "
            "https:// needs tls, http:// forbids it, a bare host takes what tls "
            "implies.",
            example=["cp1:7443", "cp2:7443"],
            live=True,
        ),
    ]
    node_id: Annotated[
        str | None,
        key(
            "This node's name in the fleet; with TLS, the certificate's common name. "
            "Unset: the host name.",
            example="gpu-07",
            kind="name",
        ),
    ] = None
    hostname: Annotated[
        str | None,
        key("Shown to people. Unset: the host name.", example="gpu-07", kind="name"),
    ] = None
    mgmt_addr: Annotated[
        str | None,
        key(
            "The address engines are reached on. Unset: the source address on the way "
            "to the control plane.",
            example="10.20.0.5",
            kind="mgmt_addr",
            live=True,
        ),
    ] = None
    mgmt_interface: Annotated[
        str | None,
        key(
            "The interface NCCL bootstraps over. Unset: the one that holds mgmt_addr, "
            "then eth0 if there is one.",
            example="bond0",
            kind="name",
            live=True,
        ),
    ] = None
    labels: Annotated[
        dict[str, str],
        key(
            "Free facts for a profile's node_selector.",
            example={"rack": "a1"},
            kind="label",
            live=True,
        ),
    ] = field(default_factory=dict[str, str])
    fabrics: Annotated[
        tuple[Fabric, ...],
        key(
            "Which adapter is on which fabric. Never guessed.",
            example=[{"name": "rail0", "hcas": ["mlx5_0"]}],
        ),
    ] = ()
    heartbeat_interval: Annotated[
        Duration,
        key(
            "Time between heartbeats, where the control plane asks for no other.",
            low=0.1,
            live=True,
            zero_is_default=True,
        ),
    ] = 5.0
    reconnect_base: Annotated[
        Duration,
        key(
            "Wait after the first round over all servers without success; it doubles.",
            low=0.01,
            live=True,
            zero_is_default=True,
        ),
    ] = 1.0
    reconnect_max: Annotated[
        Duration,
        key(
            "The longest wait between two rounds. Under reconnect_base it becomes the "
            "larger of that and 30s.",
            low=0.01,
            live=True,
            zero_is_default=True,
        ),
    ] = 30.0
    adopt_ready_timeout: Annotated[
        Duration,
        key(
            "How long an adopted engine has to answer its health check.",
            low=0.1,
            live=True,
            zero_is_default=True,
        ),
    ] = 60.0
    model_dirs: Annotated[
        tuple[Path, ...],
        key(
            "Where weights already lie. weights_cache is always one of them.",
            example=["/nvme/models", "/lustre/models"],
            kind="path",
            live=True,
        ),
    ] = ()
    weights_cache: Annotated[
        Path | None,
        key(
            "Where fetched weights land. Unset: the first of model_dirs, else "
            "/var/lib/llmgw-weights.",
            example="/nvme/models",
            kind="path",
        ),
    ] = None
    engines_dir: Annotated[
        Path, key("One folder for each engine build.", kind="path")
    ] = "/opt/llmgw/engines"
    state_dir: Annotated[
        Path,
        key("The ledger of engines, learned servers, the epoch.", kind="path"),
    ] = "/var/lib/llmgw"
    tls: Annotated[Tls, key("Mutual TLS: all three files or none.")] = Tls()
    discovery: Annotated[Discovery, key("What this node is.")] = Discovery()
    engines: Annotated[Engines, key("What serves models.")] = Engines()
    supervisor: Annotated[Supervisor, key("How engines are kept.")] = Supervisor()
    weights: Annotated[Weights, key("How weights are fetched.")] = Weights()
    link: Annotated[Link, key("How control planes are dialled.")] = Link()
    metrics: Annotated[Metrics, key("Numbers for Prometheus.")] = Metrics()
    tracing: Annotated[Tracing, key("Traces for a collector.")] = Tracing()
