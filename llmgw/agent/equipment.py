"""What a node has to serve with, and whether that is enough, for the doctor."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from llmgw.agent.finding import Finding, Verdict, told
from llmgw.agent.inventory import Inventory
from llmgw.wire import Problem


class _Said(Struct, frozen=True):
    """Of a fact without a trouble."""

    evidence: str
    verdict: Verdict = "ok"
    fix: str = ""


def findings(
    inventory: Inventory, names: Sequence[str] | None = None
) -> Iterator[Finding]:
    """Of each fact one, or one for each of its troubles. *names*: None is all."""
    problems = _once(inventory.by_fact())
    facts = inventory.facts().facts
    for name in names or _FACTS:
        check, judge = _FACTS[name]
        for problem in problems.get(name, ()):
            yield told(check, problem)
        if problems.get(name):
            continue
        value: Any = inventory.value(name)
        if value is None:
            evidence = f"unknown: {facts[name].reason}"
            yield Finding(check=check, verdict="warning", evidence=evidence)
            continue
        said = judge(value)
        yield Finding(
            check=check,
            verdict=said.verdict,
            evidence=f"{said.evidence} ({facts[name].source})",
            fix=said.fix,
        )


def _once(by_fact: dict[str, list[Problem]]) -> dict[str, list[Problem]]:
    """A folder that cannot be used holds no models either: that is one cause."""
    folders = {
        (problem.where or "").partition(": ")[2] for problem in by_fact.get("disks", ())
    }
    return by_fact | {
        "models": [one for one in by_fact.get("models", ()) if one.where not in folders]
    }


def _count(entries: Sequence[Any]) -> str:
    return f"{len(entries)} found" if entries else "none"


def _gpus(value: dict[str, Any]) -> _Said:
    driver = value.get("driver")
    versions = f", driver {driver}, CUDA {value.get('cuda')}" if driver else ""
    return _Said(_count(value["gpus"]) + versions)


def _hcas(value: list[Any]) -> _Said:
    return _Said(_count(value))


def _disks(value: list[dict[str, Any]]) -> _Said:
    """A folder that is not there yet was counted as found."""
    absent = [f"{one['use']} {one['path']}" for one in value if not one["exists"]]
    evidence = f"{len(value) - len(absent)} of {len(value)} folders are there"
    return _Said(evidence + (f"; not yet: {', '.join(absent)}" if absent else ""))


def _models(value: list[Any]) -> _Said:
    if value:
        return _Said(_count(value))
    return _Said("none yet; what a replica names is fetched when it is wanted")


def _builds(value: list[Any]) -> _Said:
    if value:
        return _Said(_count(value))
    return _Said(
        "none: no replica can run here before there is one",
        "warning",
        "`llmgw engines install URL --sha256 SUM`, or name a program that is here: "
        "engines.llamacpp.path",
    )


# The facts whose troubles are one check each, and what to call it.
_FACTS: dict[str, tuple[str, Callable[[Any], _Said]]] = {
    "gpus": ("GPUs and driver", _gpus),
    "hcas": ("adapters", _hcas),
    "disks": ("directories and space", _disks),
    "models": ("models", _models),
    "builds": ("engines", _builds),
}
# Those that no file says anything of.
OF_THE_MACHINE = ("gpus", "hcas")
