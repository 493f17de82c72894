"""The fetch process: orders in on its standard input, answers out on its output.

A process of its own, so that the agent's loop and memory stay as small as they are,
whatever moves through here and whatever a library of the hub's takes (T75, T76). It
ends when the other side does: what it was at is resumed by the next one.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import suppress

import msgspec

from llmgw.errors import WeightsError
from llmgw.weights.budget import Budget, Quiet
from llmgw.weights.claim import me
from llmgw.weights.faults import Cancelled
from llmgw.weights.job import Job
from llmgw.weights.order import (
    Answer,
    Begin,
    Cancel,
    Done,
    Failed,
    Fetch,
    Working,
    line,
    order,
)
from llmgw.weights.pool import Pool
from llmgw.wire import Progress

log = logging.getLogger(__name__)

REPORT_EVERY = 0.2


class Desk:
    """Takes orders and has each worked on in a thread."""

    def __init__(self, begin: Begin, out: int) -> None:
        self._begin = begin
        self._out = out
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._owner = me()
        settings = begin.settings
        self._pool = Pool(
            settings.connections,
            Budget(settings.rate_limit),
            quiet=Quiet(settings.quiet_hours) if settings.quiet_hours else None,
            stall=begin.stall,
        )
        self._latest: dict[int, Progress] = {}

    def fetch(self, wish: Fetch) -> None:
        try:
            job = Job(
                self._begin,
                wish.source,
                wish.digest,
                pool=self._pool,
                owner=self._owner,
                report=lambda progress: self._note(wish.id, progress),
            )
        except WeightsError as error:
            self._say(_failed(wish.id, error))
            return
        self._jobs[wish.id] = job
        threading.Thread(
            target=self._work, args=(wish.id, job), name=f"job-{wish.id}", daemon=True
        ).start()

    def cancel(self, number: int) -> None:
        job = self._jobs.get(number)
        if job is not None:
            job.cancel()

    def report(self) -> None:
        """Say how far each is. Now and then: a block takes less time than a line."""
        with self._lock:
            latest, self._latest = self._latest, {}
        for number, progress in latest.items():
            self._say(Working(id=number, progress=progress))

    def _note(self, number: int, progress: Progress) -> None:
        with self._lock:
            self._latest[number] = progress

    def _work(self, number: int, job: Job) -> None:
        try:
            path = job.run()
        except WeightsError as error:
            self._say(_failed(number, error))
        except Cancelled:
            self._say(Failed(id=number, what="is no longer wanted", final=False))
        else:
            self.report()
            self._say(Done(id=number, path=str(path)))
        finally:
            del self._jobs[number]

    def _say(self, message: Answer) -> None:
        came = self._pool.budget.taken
        message = msgspec.structs.replace(message, came=came)
        with self._lock, suppress(BrokenPipeError):
            view = memoryview(line(message))
            while view:
                view = view[os.write(self._out, view) :]


def _failed(number: int, error: WeightsError) -> Failed:
    return Failed(
        id=number, what=error.what, where=error.where, fix=error.fix, final=error.final
    )


def main() -> None:
    # Ctrl-C is the other side's to answer: it hangs up when it has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # A bug in a thread is a bug of the process: the other side sees it end.
    threading.excepthook = _die
    lines = sys.stdin.buffer
    begin = order(lines.readline())
    assert isinstance(begin, Begin)
    desk = Desk(begin, sys.stdout.fileno())
    over = threading.Event()

    def report() -> None:
        while not over.wait(REPORT_EVERY):
            desk.report()

    threading.Thread(target=report, name="report", daemon=True).start()
    for raw in lines:
        match order(raw):
            case Fetch() as wish:
                desk.fetch(wish)
            case Cancel(id=number):
                desk.cancel(number)
            case Begin():
                raise AssertionError("begun twice")
    # At once: threads in the middle of a read would be waited for.
    os._exit(0)


def _die(arguments: threading.ExceptHookArgs) -> None:
    sys.__excepthook__(
        arguments.exc_type,
        arguments.exc_value or arguments.exc_type(),
        arguments.exc_traceback,
    )
    sys.stderr.flush()
    os._exit(70)


if __name__ == "__main__":
    main()
