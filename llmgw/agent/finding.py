"""What a check of `llmgw doctor` says."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "warning", "fault", "skipped"]


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """*evidence* is what was seen; *fix*, if it is not well, what can be done."""

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""
