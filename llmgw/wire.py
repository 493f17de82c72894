"""The messages between a node and a control plane, version 1 (docs/protocol.md).

Files are strict, the wire is lenient: unknown fields and kinds are skipped, a field
added later has a default, and none ever changes its meaning. Durations are seconds
as numbers, sizes are bytes. No field is a wall-clock time.
"""

import hashlib
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

PROTOCOL = 1
MAX_LINE = 4 * 1024 * 1024
# For bytes that are no message: too deep a nesting is no error of msgspec's own.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Of one node. With ten thousand, each that fell was planned for among all the others,
# and the agent had no time left to hear that they had been a mistake.
MOST_REPLICAS = 1000
ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"

State = Literal[
    "pending", "fetching", "starting", "ready", "busy", "unhealthy",
    "backoff", "crash_loop", "stopping", "stopped", "failed",
]  # fmt: skip
EngineKind = Literal["llamacpp", "vllm", "sglang", "command"]
# As far as etcd counts its revisions. A number beyond would lock out every leader.
HIGHEST_EPOCH = 2**63 - 1
Epoch = Annotated[int, Meta(ge=0, le=HIGHEST_EPOCH)]


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable; fields at their default are not sent."""


# What is wanted ---------------------------------------------------------------------


class Model(Message, frozen=True, kw_only=True):
    """Weights by name; *source* says where they come from, *path* where they lie."""

    name: str
    source: str = ""
    digest: str | None = None
    path: str | None = None


class Group(Message, frozen=True, kw_only=True):
    """The place of a replica in an engine that spans nodes.

    *members* are `host:port` by rank, where the engine has to be told where they listen
    (llama.cpp: the rpc-servers; rank 0 is the head). *build_digest* is that of the one
    build all of them run: a node that has another refuses to start. When a member died,
    the control plane has all of them end, and starts them by a new generation of all.
    """

    id: str
    rank: int
    size: int
    head: str
    port: int
    fabric: str | None = None
    members: tuple[str, ...] = ()
    build_digest: str | None = None


class Restart(Message, frozen=True, kw_only=True):
    """When a crashed engine is started again; None: as the node's own file says.

    *at_once*: without a wait the first time, if it has served before.
    """

    base_s: float | None = None
    max_s: float | None = None
    crash_loop_after: int | None = None
    at_once: bool = True


class Disconnect(Message, frozen=True, kw_only=True):
    """Stop after so many seconds without a control plane; None: never."""

    stop_after: float | None = None


class Lora(Message, frozen=True, kw_only=True):
    """An adapter on top of the model's weights."""

    source: str
    scale: float = 1.0
    digest: str | None = None


class Replica(Message, frozen=True, kw_only=True):
    """One engine process wanted on one node. *memory* in bytes, *cpus* in CPUs.

    *context* is what one request may have, in tokens; *parallel* how many at once.
    """

    id: str
    generation: int
    engine: str
    build: str | None = None
    model: Model | None = None
    gpus: tuple[str, ...] = ()
    cpus: float | None = None
    memory: int | None = None
    context: int | None = None
    parallel: int | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    port: int | None = None
    group: Group | None = None
    restart: Restart | None = None
    disconnect: Disconnect | None = None
    mmproj: Model | None = None
    lora: tuple[Lora, ...] = ()
    embeddings: bool = False
    replace: Literal["stop_first", "start_first"] = "stop_first"


class Build(Message, frozen=True, kw_only=True):
    """An engine build to have at hand."""

    name: str
    engine: str
    url: str
    sha256: str


class Wanted(Struct, frozen=True):
    """A replica, and the digest of its JSON as it came."""

    replica: Replica
    digest: str


class Snapshot(Message, frozen=True, kw_only=True, tag_field="t", tag="snapshot"):
    """Everything wanted on this node, whole every time. Acts only if *complete*."""

    epoch: Epoch
    rev: int
    complete: bool = False
    replicas: tuple[Raw, ...] = ()
    builds: tuple[Build, ...] = ()
    drain: bool = False

    def wanted(self) -> tuple[Wanted, ...]:
        """The replicas, decoded.

        ValueError names the one that is malformed, has a wrong id or stands twice, or
        says that they are too many: the whole snapshot is then refused, for half of
        what is wanted must stop nothing.
        """
        if len(self.replicas) > MOST_REPLICAS:
            many = len(self.replicas)
            raise ValueError(f"{many} replicas are more than {MOST_REPLICAS}")
        found: dict[str, Wanted] = {}
        for number, raw in enumerate(self.replicas):
            try:
                replica = msgspec.json.decode(raw, type=Replica)
                whole = digest(raw)
            except UNDECODABLE as error:
                raise ValueError(f"replicas[{number}]: {error}") from error
            if not re.fullmatch(ID_PATTERN, replica.id):
                raise ValueError(
                    f"replicas[{number}]: the id {replica.id!r} is not lower-case "
                    "letters, digits and dashes, at most 63"
                )
            if replica.id in found:
                raise ValueError(f"replicas[{number}]: {replica.id} stands twice")
            found[replica.id] = Wanted(replica, whole)
        return tuple(found.values())


class Ping(Message, frozen=True, kw_only=True, tag_field="t", tag="ping"):
    pass


class Ask(Message, frozen=True, kw_only=True, tag_field="t", tag="ask"):
    """Something that is not state: `log_tail`, `survey`, `doctor`, `fetch_cancel`."""

    id: str
    kind: str
    args: dict[str, Any] = {}


class Bye(Message, frozen=True, kw_only=True, tag_field="t", tag="bye"):
    reason: str
    leader: str | None = None


Line = Snapshot | Ping | Ask | Bye


class _Kind(Struct, frozen=True):
    t: str


def decode_line(line: bytes) -> Line | None:
    """One line of `GET /v1/desired`; None for a kind this version does not know.

    ValueError if it is no such line.
    """
    try:
        kind = msgspec.json.decode(line, type=_Kind).t
        if kind not in ("snapshot", "ping", "ask", "bye"):
            return None
        return msgspec.json.decode(line, type=Line)
    except UNDECODABLE as error:
        raise ValueError(str(error)) from error


def digest(raw: bytes | Raw) -> str:
    """SHA-256 over the canonical JSON (sorted keys, no spaces) of one JSON document."""
    document = msgspec.json.decode(raw)
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


# What is ----------------------------------------------------------------------------


class Progress(Message, frozen=True, kw_only=True):
    """*done* of *total*, both in the unit that *what* implies (bytes for a fetch)."""

    what: str
    done: int
    total: int | None = None


class Exit(Message, frozen=True, kw_only=True):
    """How an engine ended. An adopted engine's status cannot be had: *unknown*."""

    code: int | None = None
    signal: int | None = None
    unknown: bool = False


class ReplicaStatus(Message, frozen=True, kw_only=True):
    id: str
    generation: int
    state: State
    since_s: float
    pid: int | None = None
    address: str | None = None
    ports: dict[str, int] = {}
    spec_digest: str = ""
    adopted: bool = False
    progress: Progress | None = None
    exit: Exit | None = None
    reason: str | None = None
    restarts: int = 0
    memory_pressure: float | None = None


class Problem(Message, frozen=True, kw_only=True):
    """A condition somebody should know of, for as long as it lasts."""

    code: str
    severity: Literal["warning", "error"]
    what: str
    where: str | None = None
    fix: str | None = None
    since_s: float = 0.0


class Event(Message, frozen=True, kw_only=True):
    """Something that happened; *at_s* counts from the agent's start."""

    seq: int
    at_s: float
    kind: str
    text: str
    replica: str | None = None
    data: dict[str, Any] | None = None


class Fact(Message, frozen=True, kw_only=True):
    """A value, where it came from and how old it is; without value: why not.

    Unknown is never zero: then *value* is left out and *reason* says why.
    """

    source: str
    age_s: float
    value: Any | UnsetType = UNSET
    reason: str | None = None


class Facts(Message, frozen=True, kw_only=True):
    """By name: cpu memory numa gpus nics hcas disks models builds os."""

    hash: str
    facts: dict[str, Fact]


class GpuLoad(Message, frozen=True, kw_only=True):
    uuid: str
    utilization: float | None = None
    memory_used: int | None = None


class Load(Message, frozen=True, kw_only=True):
    """*cpu* as a fraction of all CPUs, *memory_used* in bytes."""

    cpu: float | None = None
    memory_used: int | None = None
    gpus: tuple[GpuLoad, ...] = ()


# Requests and answers ---------------------------------------------------------------


class AgentInfo(Message, frozen=True, kw_only=True):
    version: str


class Register(Message, frozen=True, kw_only=True, omit_defaults=False):
    protocol: tuple[int, ...] = (PROTOCOL,)
    node_id: str
    instance: str
    machine_id_hash: str
    boot_id: str
    agent: AgentInfo
    hostname: str
    mgmt_addr: str | None
    mgmt_interface: str | None
    labels: dict[str, str] = {}
    epoch_seen: Epoch = 0
    facts_hash: str = ""
    draining: bool = False
    replicas: tuple[ReplicaStatus, ...] = ()


class Registered(Message, frozen=True, kw_only=True):
    session: str
    epoch: Epoch
    heartbeat_s: float | None = None
    lease_s: float | None = None
    servers: tuple[str, ...] | None = None
    max_line: int | None = None


class Heartbeat(Message, frozen=True, kw_only=True, omit_defaults=False):
    """*replicas*: only those that changed since the last one acknowledged."""

    session: str
    seq: int
    epoch: Epoch
    rev_applied: int | None
    facts_hash: str
    load: Load
    replicas: tuple[ReplicaStatus, ...] = ()
    problems: tuple[Problem, ...] = ()
    draining: bool = False


class HeartbeatAck(Message, frozen=True, kw_only=True):
    epoch: Epoch
    rev: int
    heartbeat_s: float | None = None
    want: tuple[str, ...] = ()
    servers: tuple[str, ...] | None = None


class Goodbye(Message, frozen=True, kw_only=True, omit_defaults=False):
    session: str
    reason: str
    engines: Literal["left_running", "stopped"]


class Probe(Message, frozen=True, kw_only=True):
    address: str
    port: int


class Probed(Message, frozen=True, kw_only=True):
    reachable: bool
    reason: str | None = None


class Leader(Message, frozen=True, kw_only=True, omit_defaults=False):
    leader: bool
    epoch: Epoch
    url: str | None = None


class Refusal(Message, frozen=True, kw_only=True):
    """`application/problem+json` (RFC 9457) with a code of docs/protocol.md."""

    code: str
    detail: str = ""
    status: int | None = None
    title: str | None = None
    leader: str | None = None
    retry_after_s: float | None = None
    accepts: tuple[int, ...] | None = None
