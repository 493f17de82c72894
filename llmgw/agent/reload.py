"""A changed file while the agent runs: what can change does, the rest is named."""

import logging
from collections.abc import Callable
from typing import Protocol

import anyio.to_thread

from llmgw.agent.resolve import Resolved
from llmgw.config.changes import changes
from llmgw.config.keys import Config
from llmgw.errors import ConfigError, LlmgwError

log = logging.getLogger(__name__)

Reader = Callable[[], Resolved]


class SayProblem(Protocol):
    """None as *what*: it is over."""

    def __call__(
        self, code: str, what: str | None, fix: str = "", *, where: str = ""
    ) -> None: ...


async def reread(read: Reader, say_problem: SayProblem) -> Resolved | None:
    """What the file says now. None: it is wrong, and the old one stays in force."""
    try:
        resolved = await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
    except LlmgwError as error:
        log.error("file not taken over, the old one stays in force: %s", error)  # noqa: TRY400 -- the operator's fault, not ours
        more = error.and_more if isinstance(error, ConfigError) else ""
        what = f"the file was not taken over: {error.what}{more}"
        fix = error.fix or "repair it, then reload"
        if more:
            fix += "; `llmgw check` tells every fault at once"
        say_problem("reload", what, fix, where=error.where)
        return None
    say_problem("reload", None)
    return resolved


def needs_link(before: Config, after: Config, say_problem: SayProblem) -> bool:
    """Whether the link has to be made anew. What needs a restart is a problem."""
    found = changes(before, after)
    say_problem("restart", None)
    log.info("file read again changed=%s", ",".join(found.live) or "nothing")
    if found.needs_restart:
        keys = ", ".join(found.needs_restart)
        log.warning("restart needed for changed keys=%s", keys)
        what = f"changed in the file, in force after a restart: {keys}"
        say_problem("restart", what, "restart the agent; engines go on")
    return found.link
