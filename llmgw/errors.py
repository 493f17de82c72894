"""What can go wrong, in the operator's words.

LlmgwError                     what, where, fix; exit code 1
├── ConfigError                the file is wrong; nothing was started          exit 78
├── TlsError                   the certificates are unusable
├── SessionError
│   ├── Unreachable            no answer: try the next control plane
│   └── Refused                an answer, and it was no: try the next control plane
├── EngineError                an engine could not be started, adopted or stopped
└── WeightsError               a file could not be found or fetched

A class exists because some `except` names it. Anything else that escapes is a
bug and is shown as one, with its traceback.
"""

from typing import ClassVar

import msgspec

# What helps where a file or the door is not this user's to open.
AS_ANOTHER_USER = "run this as root or the agent's user"


class LlmgwError(Exception):
    """Something an operator can act on: *what* is wrong, *where*, and the *fix*."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing wrong in a file: `file:line: key: what`, and the fix."""

    what: str
    key: str = ""
    file: str = ""
    line: int | None = None
    fix: str = ""

    @property
    def place(self) -> str:
        """`file:line: key`, what there is of it."""
        line = self.file + (f":{self.line}" if self.line else "")
        return ": ".join(part for part in (line, self.key) if part)

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.place, self.what) if part)
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class ConfigError(LlmgwError):
    """A file is wrong. Carries every fault found, the most important one first."""

    exit_code = 78  # EX_CONFIG: pairs with RestartPreventExitStatus in the unit

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        assert faults, "a ConfigError names at least one fault"
        first = faults[0]
        super().__init__(first.what, where=first.place, fix=first.fix)
        self.faults = faults

    @property
    def by_line(self) -> tuple[Fault, ...]:
        """As a person goes through the file; what has no line is told first."""
        return tuple(sorted(self.faults, key=lambda fault: fault.line or 0))

    @property
    def and_more(self) -> str:
        """Behind the first, where only that one is told."""
        more = len(self.faults) - 1
        return f" (and {more} more)" if more else ""

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.by_line)


class TlsError(LlmgwError):
    """The certificates are unusable."""


class SessionError(LlmgwError):
    """A control plane did not take us."""


class Unreachable(SessionError):
    """No answer: try the next control plane."""


class Refused(SessionError):
    """An answer, and it was no: try the next control plane.

    *code* is that of the problem document (docs/protocol.md), "" without one.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        fix: str = "",
        code: str = "",
        leader: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.code = code
        self.leader = leader
        self.retry_after_s = retry_after_s


class EngineError(LlmgwError):
    """An engine could not be started, adopted or stopped.

    *final* where no later try can go better: a program that may not be executed, a
    port that is no port. Anything else is bad luck, and tried again.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", final: bool = False
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.final = final


class WeightsError(LlmgwError):
    """A file could not be found or fetched.

    *final* is False where trying again later may help (a reset, a 503, a full disk
    that something else fills); a 404, a wrong digest or a refused token is final.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", final: bool = True
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.final = final
