"""What may stand behind a key: for the page, the example file, a fault's fix."""

from typing import Any, cast

from msgspec import NODEFAULT, inspect

from llmgw.config.dump import written
from llmgw.config.fields import known_keys, unwrapped
from llmgw.config.toml_places import Path
from llmgw.config.toml_value import toml_value


def description(field: inspect.Field) -> str:
    return str(_said(field)["description"])


def _said(field: inspect.Field) -> dict[str, Any]:
    kind = field.type
    assert isinstance(kind, inspect.Metadata), "every key is described"
    return cast("dict[str, Any]", kind.extra_json_schema)


def default_value(field: inspect.Field) -> Any:
    """As in a file; None where nothing is in force that could be written."""
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    if field.default is NODEFAULT:
        return None
    return written(field.default, field.type)


def example_value(field: inspect.Field) -> Any:
    value = default_value(field)
    if value not in (None, [], {}):
        return value
    return _said(field).get("examples", [value])[0]


def as_in(path: Path) -> str:
    """The fix of a value that is not what its key takes: one that is."""
    names = tuple("*" if isinstance(part, int) else part for part in path)
    known = known_keys()
    while names and names not in known:  # the entry of a list, or of a table of texts
        names = names[:-1]
    if not names:
        return ""
    name, field = names[-1], known[names]
    if isinstance(unwrapped(field.type)[0], inspect.StructType):
        return f"write [{'.'.join(names)}] on a line, and what is in it below that"
    return f"write it like {name} = {toml_value(example_value(field))}"
