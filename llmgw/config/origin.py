"""Where each value comes from: the file and line, or a default."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, inspect

from llmgw.config.fields import ROOT, unwrapped
from llmgw.config.load import Loaded


class Origin(Struct, frozen=True):
    """*detail*: the file and line, or which probe found it and how."""

    source: Literal["file", "default", "probe"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.detail}" if self.detail else self.source


def origins(found: Loaded) -> dict[str, Origin]:
    """Of every key, by its name: `tls.cert_file`, `labels`."""
    return {key: _origin(found, key) for key in leaves(ROOT)}


def leaves(kind: inspect.StructType, prefix: str = "") -> Iterator[str]:
    """The keys that hold values and not keys."""
    for field in kind.fields:
        inner = unwrapped(field.type)[0]
        if isinstance(inner, inspect.StructType):
            yield from leaves(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _origin(found: Loaded, key: str) -> Origin:
    places = found.places
    line = places.get(key)
    if key == "servers" and "server" in places:
        line = places["server"]
    if line is None:
        return Origin("default", _computed(found, key))
    return Origin("file", f"{found.file}:{line}" if line else found.file)


def _computed(found: Loaded, key: str) -> str:
    """Defaults that hang on other keys say on which."""
    if key == "weights_cache" and "model_dirs" in found.places:
        return "the first of model_dirs"
    if key == "model_dirs":
        return "weights_cache is always one of them"
    if key == "reconnect_max" and found.config.reconnect_max > 30:
        return "not less than reconnect_base"
    return ""
