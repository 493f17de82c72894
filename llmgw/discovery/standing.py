"""A probe in a process that stays: asked every few seconds, it may not cost a start.

One question and one answer a line. It leaves when its owner does.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from llmgw.discovery.child import ENTRY, Hung, end, lives


class Standing:
    """Runs *function* of *module* for each question. Blocks: ask in a thread."""

    def __init__(
        self,
        module: str,
        function: str,
        environ: Mapping[str, str] | None = None,
        *,
        kill: Callable[[int, int], None] = os.killpg,
    ) -> None:
        self._kill = kill
        self._command = [sys.executable, "-I", "-c", _PROGRAM, module, function]
        self._environ = None if environ is None else dict(environ)
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._lock = threading.Lock()

    def ask(self, arguments: Mapping[str, Any], deadline: float) -> Any:
        """The answer; Hung after *deadline* seconds. None: it died of the question."""
        with self._lock:
            return self._ask(arguments, deadline)

    def _ask(self, arguments: Mapping[str, Any], deadline: float) -> Any:
        if self._stuck is not None and lives(self._stuck):
            raise Hung(self._since)
        self._stuck = None
        since = time.monotonic()
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(arguments).encode() + b"\n")
            line = _line(process, since + deadline)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self._process = None
            if not end(process, self._kill):
                self._stuck, self._since = process, since
            raise Hung(since) from None
        try:
            return json.loads(line)
        except ValueError:  # its end, or what a library of the driver's printed
            self._end()
            return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
                # What is left of a question to a dead one would be written again when
                # the pipe is closed, and fail again.
                bufsize=0,
            )
        return self._process

    def close(self) -> None:
        """End it; the next question starts another."""
        process = self._process
        if process is not None and process.returncode is None:
            # Whoever waits for its answer hears its end.
            with contextlib.suppress(ProcessLookupError):
                self._kill(process.pid, signal.SIGKILL)
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            end(self._process, self._kill)
            self._process = None


def _line(process: subprocess.Popen[bytes], until: float) -> bytes:
    """Empty at its end; TimeoutError if there is none in time."""
    assert process.stdout is not None
    handle, said = process.stdout.fileno(), b""
    # Not select(): an agent with many engines has descriptors above its 1023.
    with selectors.PollSelector() as ready:
        ready.register(handle, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            if not ready.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            part = os.read(handle, 1 << 16)
            if not part:
                return b""
            said += part
    return said


_PROGRAM = f"""\
{ENTRY}
function = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
for line in sys.stdin:
    print(json.dumps(function(**json.loads(line))), flush=True)
"""
