"""The fetch process by itself, so that a test can kill it or starve it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from llmgw.config import keys
from llmgw.weights.order import Answer, Begin, Done, Failed, Fetch, answer, line


class FetchProcess:
    """Started by `with`, killed at its end. *prefix* goes before the command."""

    def __init__(
        self,
        cache: Path,
        settings: keys.Weights | None = None,
        *,
        prefix: tuple[str, ...] = (),
        silence: float = 20.0,
        stall: float = 30.0,
        model_dirs: tuple[Path, ...] = (),
        limit: Callable[[], None] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "llmgw.weights.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=limit,  # noqa: PLW1509 -- no threads that matter in a test
        )
        self.pid = self._process.pid
        begin = Begin(
            settings=settings or keys.Weights(),
            cache=str(cache),
            model_dirs=tuple(map(str, model_dirs)),
            silence=silence,
            stall=stall,
        )
        self._tell(line(begin))

    def _tell(self, raw: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(raw)
        self._process.stdin.flush()

    def ask(self, source: str, digest: str | None = None, number: int = 1) -> None:
        self._tell(line(Fetch(id=number, source=source, digest=digest)))

    def next(self) -> Answer | None:
        """What it says next; None if it has ended."""
        assert self._process.stdout is not None
        raw = self._process.stdout.readline()
        return answer(raw) if raw else None

    def ended(self) -> Done | Failed | None:
        """How the next fetch to end ended."""
        while True:
            said = self.next()
            if said is None or isinstance(said, Done | Failed):
                return said

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
