"""Exactly what to execute. Engines write one, the supervisor runs it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

# Checked where one is read from the ledger, which a bad disk may have written.
PortNumber = Annotated[int, Meta(gt=0, lt=65536)]
UrlPath = Annotated[str, Meta(pattern=r"^/[!-~]*$")]


class Probe(Struct, frozen=True, kw_only=True):
    """A request that costs one token: *body*, JSON, posted to *path*."""

    path: UrlPath
    body: str


class Health(Struct, frozen=True, kw_only=True):
    """How a running engine says that it serves.

    *path* is asked on the launch's `host` and the port named *port*: 200 is ready.
    *metrics_path* gives Prometheus text; if the sum of the *progress_metrics* grows,
    the engine works, however slowly it answers *path*. *requests_metric* tells whether
    requests run at all: 200 with requests running and no progress is stuck. *probe* is
    asked where the node's file wants that.
    """

    path: UrlPath = "/health"
    port: str = "api"
    metrics_path: UrlPath | None = None
    progress_metrics: tuple[str, ...] = ()
    requests_metric: str | None = None
    probe: Probe | None = None


class Limits(Struct, frozen=True, kw_only=True):
    """What the engine's cgroup and process are held to; None: not limited.

    *memory* in bytes, *cpus* in CPUs, *cpuset* the CPU numbers it may run on.
    """

    memory: int | None = None
    cpus: float | None = None
    cpuset: tuple[int, ...] | None = None
    memlock_unlimited: bool = False
    oom_score_adj: int | None = None


class File(Struct, frozen=True, kw_only=True):
    """A small file, written below the engine's run directory before it starts."""

    path: str
    content: str
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0o600


class Launch(Struct, frozen=True, kw_only=True):
    """One process to execute: a value, ready to be compared, logged and kept.

    *env* is all that is added to the supervisor's own minimal environment. *ports*
    are numbers already leased, by name; `api` is the one that serves. *host* is the
    address the engine binds and is asked on. *health* None: running is ready.
    """

    argv: Annotated[tuple[str, ...], Meta(min_length=1)]
    env: dict[str, str] = {}
    cwd: str | None = None
    files: tuple[File, ...] = ()
    host: str = "127.0.0.1"
    ports: dict[str, PortNumber] = {}
    health: Health | None = None
    limits: Limits = Limits()
    stop_signal: Literal["TERM", "INT"] = "TERM"
