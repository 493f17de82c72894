"""What is amiss with the link, in words that somebody can act on."""

import logging
import time

import anyio
import msgspec

from llmgw.errors import Refused
from llmgw.wire import Problem

log = logging.getLogger(__name__)

# Seconds between two clocks that an operator should hear of.
SKEW = 5.0


class Troubles:
    """Conditions that last, each since when. Told in the log when they come and go."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Problem, float]] = {}

    def set(self, problem: Problem) -> None:
        old, since = self._since.get(problem.code, (None, anyio.current_time()))
        self._since[problem.code] = problem, since
        if old is None or old.what != problem.what:
            where = f"where={problem.where} " if problem.where else ""
            log.warning("problem code=%s %s%s", problem.code, where, problem.what)

    def settle(self, code: str, problem: Problem | None) -> None:
        """It is so now, or it is not."""
        if problem is None:
            self.clear(code)
        else:
            self.set(problem)

    def clear(self, *codes: str) -> None:
        for code in codes:
            if self._since.pop(code, None):
                log.info("problem over code=%s", code)

    def problems(self) -> tuple[Problem, ...]:
        now = anyio.current_time()
        return tuple(
            msgspec.structs.replace(problem, since_s=now - since)
            for problem, since in self._since.values()
        )


def refused(error: Refused, seen: int) -> Problem:
    fixes = {
        "node_in_use": "is another machine a copy of this one? give each its own "
        "node_id, and an empty state_dir",
        "identity_mismatch": "set node_id to the certificate's common name, or issue a "
        "certificate for this node",
        "protocol": "run versions of agent and control plane that know each other",
        "stale_epoch": rebuilt(seen),
    }
    return Problem(
        code=error.code,
        severity="error",
        what=error.what,
        where=error.where,
        fix=error.fix or fixes[error.code],
    )


def rebuilt(seen: int) -> str:
    """What to do about a control plane that was made anew, when nodes saw *seen*.

    It is started again either way: once it was told of a higher epoch it leads no more.
    And a floor of one more, as its own log says: that epoch may be another's.
    """
    return (
        f"if this control plane was rebuilt: start it again with --epoch-floor "
        f"{seen + 1}; or `llmgw forget-epoch` on every node, and then start it again"
    )


def loopback(address: str) -> Problem | None:
    """A node that other machines cannot reach says so, and is otherwise right."""
    if address != "::1" and not address.startswith("127."):
        return None
    return Problem(
        code="mgmt_addr_loopback",
        severity="warning",
        what=f"this node is known as {address}: right on one machine, and no other "
        "machine can reach its engines",
        fix="for a fleet, set mgmt_addr, or write a control plane's own address in "
        "servers",
    )


def skew(date: float, where: str) -> Problem | None:
    """For people only: no rule of the link looks at a clock on the wall."""
    off = time.time() - date
    if abs(off) < SKEW:
        return None
    way = "ahead of" if off > 0 else "behind"
    return Problem(
        code="clock_skew",
        severity="warning",
        what=f"this machine's clock is {way} that of {where}",
        fix="have both follow a time server: certificates depend on it",
    )
