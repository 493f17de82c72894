"""The words in which a key is described: what it means, its unit and its limits."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Duration = Annotated[float, Meta(extra_json_schema={"x-nix-type": "duration"})]
Size = Annotated[int, Meta(extra_json_schema={"x-nix-type": "size"})]
Path = Annotated[str, Meta(extra_json_schema={"x-nix-type": "path"})]
# A file that holds a secret, or goes with one. On NixOS it must not be in the store.
Secret = Annotated[str, Meta(extra_json_schema={"x-nix-type": "secretPath"})]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the file. Strict: an unknown key is a typo."""


class Limits(Struct, frozen=True, kw_only=True):
    """What the text of a key must pass, beside its type. Numbers are base units."""

    low: float | None = None
    high: float | None = None
    pattern: str | None = None
    kind: str | None = None
    zero_is_default: bool = False


def key(
    text: str,
    *,
    example: Any = None,
    low: float | None = None,
    high: float | None = None,
    pattern: str | None = None,
    kind: str | None = None,
    live: bool = False,
    zero_is_default: bool = False,
) -> Meta:
    """What a key means, and its limits.

    *kind* names the check in checks.py that its text (or each entry) must pass;
    *pattern* is a POSIX extended expression of the whole text, so that Nix can use it;
    *live*: SIGHUP changes it in a running agent.
    """
    limits = Limits(
        low=low, high=high, pattern=pattern, kind=kind, zero_is_default=zero_is_default
    )
    return Meta(
        description=text,
        examples=None if example is None else [example],
        extra_json_schema={"x-reload": "live" if live else "restart"},
        extra={"limits": limits, "live": live},
    )
