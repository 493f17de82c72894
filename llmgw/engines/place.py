"""What this node gives an engine: addresses, files, a build, CPUs."""

from typing import Protocol

from msgspec import Struct

from llmgw.errors import EngineError
from llmgw.wire import Model


class Settings(Protocol):
    """What the sections `engines.<kind>` of the node's file have in common."""

    @property
    def enabled(self) -> bool: ...
    @property
    def path(self) -> str | None: ...
    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def env(self) -> dict[str, str]: ...
    @property
    def allow_args(self) -> tuple[str, ...]: ...
    @property
    def allow_env(self) -> tuple[str, ...]: ...


class Build(Struct, frozen=True, kw_only=True):
    """An engine build found on this node; *binary* is an absolute path.

    *digest* says that two nodes have the same build; None where nothing proves it.
    *rpc_binary* is llama.cpp's server for the members of a group.
    """

    name: str
    engine: str
    binary: str
    version: str | None = None
    features: tuple[str, ...] = ()
    digest: str | None = None
    rpc_binary: str | None = None


class Place(Struct, frozen=True, kw_only=True):
    """Where and with what one replica runs here.

    *host* is the address the engine binds and is asked on, everywhere the same: API,
    Ray node address, dist-init. *weights* are paths by source (or by path, for a model
    that only has one). *threads* is never 0: engines guess wrong. *interface* is the
    management interface and *hcas* are those of the group's fabric (`mlx5_0`, or
    `mlx5_0:1` for one port). *gpus* are CUDA's numbers by uuid, where they are known.
    """

    settings: Settings
    build: Build
    ports: dict[str, int]
    host: str = "127.0.0.1"
    weights: dict[str, str] = {}
    threads: int = 1
    cpuset: tuple[int, ...] | None = None
    interface: str | None = None
    hcas: tuple[str, ...] = ()
    gpus: dict[str, int] = {}

    def weights_of(self, model: Model | None) -> str:
        """Where the weights of *model* lie; EngineError if it names none."""
        if model is None:
            raise EngineError(
                f"no model is named, and {self.build.engine} serves one",
                where="model",
                fix="name a model with a source",
            )
        return self.weights_at(model.source or model.path or "", model.name)

    def weights_at(self, source: str, name: str) -> str:
        try:
            return self.weights[source]
        except KeyError:
            raise EngineError(
                f"the weights of {name} are not on this node: {source or 'no source'}",
                where="model.source",
            ) from None


def authority(host: str, port: int) -> str:
    """`host:port` as it stands in a URL, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def name_of(source: str) -> str:
    """What an adapter is called: the last part of its source, without the ending."""
    last = source.rstrip("/").rpartition("/")[2]
    return last.partition("@")[0].removesuffix(".gguf").removesuffix(".safetensors")
