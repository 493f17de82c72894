"""The log, as the one who reads it gets it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAYS = """\
import logging
from llmgw.telemetry import set_up_logging
set_up_logging()
logging.getLogger("llmgw.x").info("something happened n=%d", 1)
"""


def logged(to: Path, stream: str | None) -> str:
    """What a program writes whose standard error is *to*."""
    environ = {
        name: one for name, one in os.environ.items() if name != "JOURNAL_STREAM"
    }
    with to.open("w") as file:
        if stream is not None:
            found = os.fstat(file.fileno())
            said = stream.format(device=found.st_dev, inode=found.st_ino)
            environ["JOURNAL_STREAM"] = said
        program = [sys.executable, "-c", SAYS]
        subprocess.run(program, stderr=file, env=environ, check=True, timeout=30)
    return to.read_text()


@pytest.mark.parametrize("stream", [None, "8:1", "{device}", ""])
def test_a_file_has_no_priorities_of_the_journal(
    tmp_path: Path, stream: str | None
) -> None:
    """`<6>` stood before each line. The variable of the unit is inherited also by one
    whose output goes elsewhere.
    """
    said = logged(tmp_path / "log", stream)

    assert said.endswith(" INFO    something happened n=1\n")
    assert said[:2] == "20", "a file has the day"


def test_the_journal_has_them_and_no_time_of_ours(tmp_path: Path) -> None:
    said = logged(tmp_path / "log", "{device}:{inode}")

    assert said == "<6>something happened n=1\n"
