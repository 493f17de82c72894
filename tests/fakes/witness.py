"""A process that stands for engines and counts every signal that it gets.

`python -m tests.fakes.witness` prints a line once it counts; each line it is sent is
answered with the number so far. A signal that cannot be counted ends or stops it, and
then there is no answer.
"""

import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from subprocess import PIPE

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

UNHEARD = {signal.SIGKILL, signal.SIGSTOP}


class Witness:
    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.pid = process.pid
        self._ask = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def heard(self) -> int:
        """Signals so far; raises if it can answer no more."""
        with anyio.fail_after(10):
            await self._ask.send(b"\n")
            return await self.line()

    async def line(self) -> int:
        return int(await self._lines.receive_until(b"\n", 100))


@asynccontextmanager
async def witness() -> AsyncGenerator[Witness]:
    command = [sys.executable, "-m", "tests.fakes.witness"]
    started = anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None)  # noqa: TID251 -- it is to end here
    async with await started as process:
        one = Witness(process)
        try:
            with anyio.fail_after(30):
                await one.line()
            yield one
        finally:
            process.kill()


def main() -> None:
    heard: list[int] = []
    for number in signal.valid_signals() - UNHEARD:
        signal.signal(number, lambda number, _: heard.append(number))
    say(0)
    for _ in sys.stdin:
        say(len(heard))


def say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
