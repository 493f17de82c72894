"""A probe in a process of its own: what hangs there takes nobody with it.

`Child.ask` runs a function by name and gives its answer, or says that it is late. A
process that not even SIGKILL ends (it sleeps in a driver, or on a dead mount) is
remembered, and no second one is put beside it. What counts is its whole session: an
nvidia-smi stays in the driver when the one that started it is long gone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmgw.discovery.found import Found, Trouble
from llmgw.supervisor import procfs

# How long a killed process has to go. Then it is one that cannot.
PATIENCE = 1.0


class Hung(Exception):
    """The probe has not answered; *since* is a monotonic time."""

    def __init__(self, since: float) -> None:
        super().__init__("has not answered")
        self.since = since


class Child:
    """Runs *function* of *module*, one process at a time. Blocks: ask in a thread."""

    def __init__(
        self,
        module: str,
        function: str,
        environ: Mapping[str, str] | None = None,
        *,
        is_bare: bool = False,
        memory: int | None = None,
        kill: Callable[[int, int], None] = os.killpg,
    ) -> None:
        """*is_bare*: it needs no installed package, and starts in half the time.
        *memory*: bytes that it may use, where it reads what strangers wrote.

        *kill*: what a test replaces to have a process that SIGKILL does not end.
        """
        self._kill = kill
        flags = ["-I", "-S"] if is_bare else ["-I"]
        self._command = [sys.executable, *flags, "-c", _PROGRAM, module, function]
        self._command.append(str(memory))
        self._environ = None if environ is None else dict(environ)
        self._stuck: subprocess.Popen[bytes] | None = None
        self._since = 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether the last one that was ended still sleeps where nothing wakes it."""
        return self._stuck is not None and lives(self._stuck)

    def ask(self, arguments: Mapping[str, Any], deadline: float) -> Found:
        """The answer of function(**arguments); Hung after *deadline* seconds."""
        if self.is_stuck:
            raise Hung(self._since)
        self._stuck = None
        since = time.monotonic()
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environ,
            start_new_session=True,
        )
        try:
            said, complaint = process.communicate(
                json.dumps(arguments).encode(), timeout=deadline
            )
        except subprocess.TimeoutExpired:
            self._end(process, since)
            raise Hung(since) from None
        if process.returncode:
            words = complaint.decode(errors="replace").strip().splitlines()
            why = words[-1] if words else f"exit status {process.returncode}"
            return Found(None, "a child process", f"the probe ended: {why}")
        return decoded(said)

    def _end(self, process: subprocess.Popen[bytes], since: float) -> None:
        if not end(process, self._kill):
            self._stuck, self._since = process, since


def end(
    process: subprocess.Popen[bytes], kill: Callable[[int, int], None] = os.killpg
) -> bool:
    """End its whole session: nvidia-smi hangs below the one that asked it. False if
    something of it lives on.
    """
    try:
        kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    until = time.monotonic() + PATIENCE
    while lives(process):
        if time.monotonic() > until:
            return False
        # In a thread, and only behind a process that was late.
        threading.Event().wait(0.01)
    return True


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether it, or anything that it started in its session, still runs."""
    if process.poll() is None:
        return True
    return any(p.session == process.pid and p.is_alive for p in procfs.everyone())


# Isolated, so that no variable and no file of the working directory gets in. The path
# is then that of this very package, wherever it lies. Written out here, for importing
# this module would load subprocess, which takes longer than most probes.
ENTRY = f"""\
import _thread, importlib, json, os, resource, select, signal, sys
def leave_with_owner():
    heard = select.poll()
    heard.register(1, 0)
    heard.poll()
    os.killpg(0, signal.SIGKILL)
_thread.start_new_thread(leave_with_owner, ())
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
"""

_PROGRAM = f"""\
{ENTRY}
from llmgw.discovery.found import clean
module, function, memory = sys.argv[1:]
if memory != "None":
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
answer = getattr(importlib.import_module(module), function)(**json.load(sys.stdin))
json.dump(clean(answer), sys.stdout)
"""


def decoded(said: bytes) -> Found:
    value, source, reason, troubles, memory = json.loads(said)
    return Found(
        value, source, reason, tuple(Trouble(*one) for one in troubles), memory
    )
