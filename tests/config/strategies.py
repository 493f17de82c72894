"""Configurations and files, right and wrong, for the property tests and the fuzzer."""

from typing import Any, cast

from hypothesis import strategies as st
from msgspec import inspect

from llmgw.config import units
from llmgw.config.fields import ROOT, Hints, unwrapped

HOSTS = st.sampled_from(
    ["cp1", "cp2.example:8080", "[fd20::1]:7443", "10.20.0.1", "CP1:80", "cp1:443/a/"]
)
TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12
).filter(lambda text: text == text.strip() and text.strip() != "")
PATHS = st.sampled_from(["/a", "/a/", "//a", "/b/./c", "/b/../c", "/ü", "/a,b", "rel"])
KINDS: dict[str | None, st.SearchStrategy[str]] = {
    None: st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")),
    "path": PATHS,
    "name": TEXT,
    "mgmt_addr": st.sampled_from(["10.20.0.5", "fd20::5", "fe80::1%eth0", "node-a"]),
    "url": st.sampled_from(["https://m.example/x", "http://127.0.0.1:4318"]),
    "listen": st.sampled_from(["127.0.0.1:9464", ":9464", "[::1]:9464"]),
    "port_range": st.sampled_from(["20000-20999", "1-65535", "5-5"]),
    "quiet_hours": st.sampled_from(["08:00-18:00", "22:30-06:00"]),
}
NAMES = {"label": TEXT, "env": st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,8}\Z")}


@st.composite
def right(draw: st.DrawFn) -> dict[str, Any]:
    """What a person may write: any choice of keys, each with a value that is right."""
    written = draw(_table(ROOT))
    written.pop("fabrics", None)
    fabrics = draw(st.lists(TEXT, max_size=3, unique=True))
    if fabrics:
        written["fabrics"] = [
            {"name": name, "hcas": [f"mlx5_{number}"]}
            for number, name in enumerate(fabrics)
        ]
    written["servers"] = draw(st.lists(HOSTS, min_size=1, max_size=4))
    if draw(st.booleans()):
        written["server"] = draw(HOSTS)
    if "tls" in written:
        names = ("cert_file", "key_file", "ca_file")
        written["tls"] |= {name: f"/{name}" for name in names}
    supervisor = written.get("supervisor", {})
    if units.duration(supervisor.get("restart_base", "1s")) > units.duration(
        supervisor.get("restart_max", "1m")
    ):
        supervisor.pop("restart_base", None)
        supervisor.pop("restart_max", None)
    for mirror in written.get("weights", {}).get("mirrors", ()):
        mirror.pop("cert_file", None)
        mirror.pop("key_file", None)
    return written


@st.composite
def _table(draw: st.DrawFn, kind: inspect.StructType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in kind.fields:
        if field.required or draw(st.integers(0, 3)) == 0:
            found[field.name] = draw(_value(field.type))
    return found


def _value(kind: inspect.Type) -> st.SearchStrategy[Any]:
    inner, hints = unwrapped(kind)
    limits = hints.limits
    match inner:
        case inspect.StructType():
            return _table(inner)
        case inspect.BoolType():
            return st.booleans()
        case inspect.LiteralType():
            return st.sampled_from([str(word) for word in inner.values])
        case inspect.VarTupleType():
            item, _ = unwrapped(inner.item_type)
            if isinstance(item, inspect.StructType):
                return st.lists(_table(item), max_size=2)
            if isinstance(item, inspect.IntType):
                return st.lists(st.integers(1, 255), max_size=2)
            return st.lists(KINDS[limits.kind], max_size=3)
        case inspect.DictType():
            return st.dictionaries(NAMES[limits.kind or ""], KINDS[None], max_size=2)
        case inspect.StrType():
            return KINDS[limits.kind]
        case _:
            return _number(hints)


def _number(hints: Hints) -> st.SearchStrategy[Any]:
    low = hints.limits.low or 0
    if hints.unit == "duration":
        lowest = round(low * 10**9)
        return st.integers(lowest, 2**63 - 1).map(
            lambda ns: units.show_duration(ns / 10**9)
        )
    if hints.unit == "size":
        return st.integers(int(low), 2**50).map(units.show_size)
    return st.integers(int(low), int(hints.limits.high or 10**6))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A right file in which something is replaced by something."""
    written = draw(right())
    at: dict[str, Any] = written
    while True:
        key = draw(st.sampled_from(sorted(at)))
        inner: Any = at[key]
        if not isinstance(inner, dict) or not inner or draw(st.booleans()):
            at[key] = draw(JSON)
            return written
        at = cast("dict[str, Any]", inner)
