"""Runs one test, in namespaces of its own: usage: inside.py RUN_FOLDER ROOT TEST

Started by __main__.py. Mounts, networks and processes are all gone when this ends,
killed or not.
"""

import re
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import TestCase

from machine import Failed, Machine, load, machines, retry, say

TESTS = Path(__file__).resolve().parents[1]
NODES = TESTS / "lite/nodes.json"


class Assertions(TestCase):
    failureException = Failed


@contextmanager
def subtest(name: str) -> Iterator[None]:
    say(f"== {name}")
    yield
    say(f"== ok: {name}")


def names(guests: list[Machine]) -> dict[str, object]:
    """What a script sees, as the driver gives it."""
    by_name: dict[str, object] = {
        re.sub(r"\W", "_", guest.name): guest for guest in guests
    }
    return by_name | {
        "machines": guests,
        "retry": retry,
        "subtest": subtest,
        "t": Assertions(),
        "start_all": lambda: [guest.start() for guest in guests],
    }


def where(error: BaseException) -> str:
    """The lines of the script that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.endswith(".py")]
    return "".join(
        f"\n  {Path(frame.filename).name}:{frame.lineno}: {frame.line}"
        for frame in ours
        if Path(frame.filename).parent != Path(__file__).parent
    )


def main(run: Path, root: Path, test: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    about = load(NODES, test)
    guests: list[Machine] = []
    try:
        guests = machines(about["nodes"], run, root)
        scope = names(guests)
        for file in about["script"]:
            source = (TESTS / file).read_text()
            exec(compile(source, str(TESTS / file), "exec"), scope)  # noqa: S102 -- it is ours
    except subprocess.CalledProcessError as error:
        say(f"FAILED: {shlex.join(map(str, error.cmd))}\n{error.stderr}{where(error)}")
    except Exception as error:  # noqa: BLE001 -- whatever a script raises is its failure
        kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
        say(f"FAILED: {kind}{error}{where(error)}")
    else:
        return 0
    finally:
        failed = sys.exc_info()[0] is not None
        for guest in guests:
            guest.release()
        del failed
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
