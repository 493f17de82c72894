"""What a person sees while something takes long: a bar on a terminal, else lines."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from llmgw.wire import Progress

LINE_EVERY = 5.0


@contextmanager
def progress(text: str) -> Generator[Callable[[Progress], None]]:
    """Shows how far *text* is, each time it is told; as often as news comes.

    Nothing is shown before the first news: what was there already took no time.
    """
    if sys.stdout.isatty():
        try:
            from rich import progress as bars
        except ImportError:
            yield _lines(text)
            return
        columns = (
            bars.TextColumn("· {task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(binary_units=True),
            bars.TransferSpeedColumn(),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns) as shown:
            task: bars.TaskID | None = None

            def update(news: Progress) -> None:
                nonlocal task
                if task is None:
                    task = shown.add_task(text, total=news.total)
                shown.update(task, completed=news.done, total=news.total)

            yield update
    else:
        yield _lines(text)


def _lines(text: str) -> Callable[[Progress], None]:
    said = -LINE_EVERY

    def update(news: Progress) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= LINE_EVERY or news.done == news.total:
            said = now
            print(f"· {text}: {_far(news)}", flush=True)

    return update


def _far(news: Progress) -> str:
    done = news.done / 1024**2
    if not news.total:
        return f"{done:.0f} MiB"
    return f"{done:.0f} of {news.total / 1024**2:.0f} MiB"
