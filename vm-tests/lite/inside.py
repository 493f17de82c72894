"""Runs one test, in namespaces of its own: inside.py RUN_FOLDER ROOT SOURCE TEST

Started by __main__.py. Mounts, networks and processes are all gone when this ends,
killed or not.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import TestCase

from commands import Commands, Failed, retry, say
from machine import Machine

TESTS = Path(__file__).resolve().parents[1]
NODES = TESTS / "lite/nodes.json"


class Assertions(TestCase):
    failureException = Failed


@contextmanager
def subtest(name: str) -> Generator[None]:
    say(f"== {name}")
    yield
    say(f"== ok: {name}")


def names(guests: Sequence[Commands]) -> dict[str, object]:
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


def play(test: str, make: Callable[[str, Mapping[str, Any]], Commands]) -> int:
    """Run the test on machines of this making; 0 if it passed."""
    about = json.loads(NODES.read_text())[test]
    guests: list[Commands] = []
    status = 1
    try:
        for name, node in about["nodes"].items():
            guests.append(make(name, node))
        scope = names(guests)
        for file in about["script"]:
            code = compile((TESTS / file).read_text(), str(TESTS / file), "exec")
            exec(code, scope)
    except subprocess.CalledProcessError as error:
        say(f"FAILED: {shlex.join(map(str, error.cmd))}\n{error.stderr}{where(error)}")
    except Exception as error:  # noqa: BLE001 -- whatever a script raises is its failure
        kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
        say(f"FAILED: {kind}{error}{where(error)}")
    else:
        status = 0
    finally:
        for guest in guests:
            if status:
                print(f"--- {guest.name}\n{guest.last_words()}", flush=True)
            guest.release()
    return status


def main(run: Path, root: Path, source: Path, test: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return play(test, lambda name, about: Machine(name, about, run, root, source))


if __name__ == "__main__":
    folder, base, program, name = sys.argv[1:]
    sys.exit(main(Path(folder), Path(base), Path(program), name))
