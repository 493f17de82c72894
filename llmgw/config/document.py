"""The keys as a page of documentation and as a file to start from."""

import textwrap
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from llmgw.config.examples import default_value, description, example_value
from llmgw.config.fields import ROOT, Hints, unwrapped
from llmgw.config.toml_value import toml_value
from llmgw.config.units import show_duration, show_size

OPTION = "services.llmgw-agent.settings."

_HEAD = """\
# Configuration

<!-- Written by `llmgw schema --format markdown` (`make generate`). Not by hand. -->

The agent reads one file, `/etc/llmgw/agent.toml` unless `--config` or `$LLMGW_CONFIG`
names another. The same file is right on every node: what a machine is, is measured.
Nothing else sets a key, neither a flag nor a variable. On NixOS the keys are the
options `services.llmgw-agent.settings.KEY` and the file is written for you.

The smallest file that works:

```toml
servers = ["cp1:7443"]
```

For one control plane `server = "cp1:7443"` is the same. Where both are written, they
are one list, `server` first.

## How it is written

- TOML, YAML or JSON, by the file's extension.
- A **duration** is a number with its unit: `"5s"`, `"1m30s"`, `"500ms"`, `"1.5h"`.
  Units are `h`, `m`, `s`, `ms`, `us` (or `µs`) and `ns`. A bare number is refused.
- A **size** is a number with its unit: `"64MiB"` (1024), `"8GB"` (1000), `"512B"`; or a
  bare number of bytes.
- Text that is empty counts as not written, where a key may be left out.
- Paths are taken as they are: neither `~` nor `$X` is expanded.

## Is it right?

```
llmgw check agent.toml        # looks at nothing but the file
llmgw explain agent.toml      # and what this machine fills in, with the reason
```

Every fault is told at once, by its line, with what to write instead. Exit code 78 means
that the file is wrong. `--json` prints the same for programs, durations as seconds, and
first what would be told if it were one fault only.

## Changing it while the agent runs

`systemctl reload llmgw-agent` (SIGHUP) reads the file again. Keys marked *live* change
at once; for the others the log and `llmgw status` name what waits for a restart, which
engines outlive. A wrong file changes nothing, and both tell
what is wrong in which line of it, and what to write instead.

## Completion in an editor

`llmgw schema > agent.schema.json` writes the schema.

- TOML (Even Better TOML, taplo): `#:schema ./agent.schema.json` as the first line.
- YAML (yaml-language-server): `# yaml-language-server: $schema=./agent.schema.json`.
- JSON (VS Code): map the file under `json.schemas` in the settings.

## Keys

The NixOS option of a key is `services.llmgw-agent.settings.` and its name.
"""

_EXAMPLE_HEAD = """\
# Configuration of the llmgw agent: /etc/llmgw/agent.toml
#
# Written by `llmgw schema --format example-toml`. What is commented out shows the
# default, or an example where there is none. docs/configuration.md says more.
"""


def markdown() -> str:
    """docs/configuration.md."""
    return _HEAD + "\n".join(_section(ROOT, "", "")) + "\n"


def _section(kind: inspect.StructType, prefix: str, title: str) -> Iterator[str]:
    inner: list[tuple[inspect.StructType, str, str]] = []
    rows: list[str] = []
    for field in kind.fields:
        name = prefix + field.name
        base = unwrapped(field.type)[0]
        if isinstance(base, inspect.StructType):
            inner.append((base, f"{name}.", name))
            continue
        rows.append(_row(name, field))
        if isinstance(base, inspect.VarTupleType):
            entry = unwrapped(base.item_type)[0]
            if isinstance(entry, inspect.StructType):
                inner.append((entry, f"{name}.*.", f"{name}.*"))
    if title:
        yield f"\n### {title}\n"
        yield (kind.cls.__doc__ or "").partition("\n")[0] + "\n"
    else:
        yield ""
    if rows:
        yield "| key | type | default | | meaning | NixOS option |"
        yield "| --- | --- | --- | --- | --- | --- |"
        yield from rows
    for group in inner:
        yield from _section(*group)


def _row(name: str, field: inspect.Field) -> str:
    hints = unwrapped(field.type)[1]
    cells = [
        f"`{name}`",
        type_name(field.type, Hints()),
        _default(field),
        "live" if hints.live else "",
        description(field).replace("|", "\\|"),
        f"`{OPTION}{name}`",
    ]
    return "| " + " | ".join(cells) + " |"


def type_name(kind: inspect.Type, hints: Hints) -> str:
    """A type in an operator's words, with its limits."""
    inner, hints = unwrapped(kind, hints)
    low, high = hints.limits.low, hints.limits.high
    match inner:
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " or ".join(f'`"{word}"`' for word in inner.values)
        case inspect.IntType() | inspect.FloatType():
            if hints.unit == "duration":
                or_zero = (
                    ", or 0 for the default" if hints.limits.zero_is_default else ""
                )
                least = f" ≥ {show_duration(low)}" if low else ""
                return f"duration{least}{or_zero}"
            if hints.unit == "size":
                return "size" + (f" ≥ {show_size(int(low))}" if low else "")
            least = "" if low is None else f" ≥ {low:g}"
            return f"number{least}" + ("" if high is None else f" ≤ {high:g}")
        case inspect.VarTupleType():
            return "list of " + type_name(inner.item_type, hints)
        case inspect.DictType():
            return "table of texts"
        case inspect.StructType():
            return "tables"
        case _:
            return {"path": "path", "secretPath": "path"}.get(hints.unit, "text")


def _default(field: inspect.Field) -> str:
    value = default_value(field)
    return "" if value is None else f"`{toml_value(value)}`"


def example() -> str:
    """docs/agent.example.toml: right as it stands, and with every key uncommented."""
    return _EXAMPLE_HEAD + "\n".join(_example(ROOT, "")) + "\n"


def _example(kind: inspect.StructType, section: str) -> Iterator[str]:
    inner: list[tuple[inspect.StructType, str, bool]] = []
    keys: list[str] = []
    for field in kind.fields:
        base = unwrapped(field.type)[0]
        if isinstance(base, inspect.StructType):
            inner.append((base, f"{section}{field.name}", False))
            continue
        if isinstance(base, inspect.VarTupleType):
            entry = unwrapped(base.item_type)[0]
            if isinstance(entry, inspect.StructType):
                inner.append((entry, f"{section}{field.name}", True))
                continue
        keys += ["", *textwrap.wrap(description(field), 86, **_COMMENT)]
        value = example_value(field)
        mark = "" if field.required and not section else "# "
        keys.append(f"{mark}{field.name} = {toml_value(value)}")
    yield from keys
    for entry, name, is_list in inner:
        yield ""
        yield ""
        yield from textwrap.wrap(entry.cls.__doc__ or "", 86, **_COMMENT)
        yield f"# [[{name}]]" if is_list else f"[{name}]"
        yield from _example(entry, f"{name}.")


_COMMENT: dict[str, Any] = {
    "initial_indent": "# ",
    "subsequent_indent": "# ",
    "break_on_hyphens": False,
}
