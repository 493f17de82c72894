"""What a check of `llmgw doctor` says."""

from typing import Literal

from msgspec import Struct

from llmgw.wire import Problem

Verdict = Literal["ok", "warning", "fault", "skipped"]


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """*evidence* is what was seen; *fix*, if it is not well, what can be done."""

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""


def told(check: str, problem: Problem) -> Finding:
    """What a part of the agent says is wrong, as a finding of *check*."""
    where = f"{problem.where}: " if problem.where else ""
    return Finding(
        check=check,
        verdict="fault" if problem.severity == "error" else "warning",
        evidence=where + problem.what,
        fix=problem.fix or "",
    )
