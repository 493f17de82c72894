"""How the program says what it does: the log now, metrics and traces where asked."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Literal

import msgspec

LogFormat = Literal["auto", "text", "json"]

# journald reads the priority from the front of a line (sd-daemon(3)).
_PRIORITY = {
    logging.CRITICAL: "<2>",
    logging.ERROR: "<3>",
    logging.WARNING: "<4>",
    logging.INFO: "<6>",
    logging.DEBUG: "<7>",
}


class _Terminal(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")


class _File(logging.Formatter):
    """As a terminal has it, with the day: a file is read on another one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")


class _Journal(logging.Formatter):
    """One line per event with its priority; the journal has the time already."""

    def format(self, record: logging.LogRecord) -> str:
        said = super().format(record).replace("\n", "\n ")
        return _PRIORITY.get(record.levelno, "<6>") + said


class _Json(logging.Formatter):
    """One object a line: time (UTC, seconds), level, logger, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def is_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Whether journald reads it: systemd says of which pipe that is true.

    The variable alone is inherited by whoever writes to a file instead, and there each
    line began with a number that nobody reads.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def set_up_logging(form: LogFormat = "auto", *, level: str = "info") -> None:
    """Send the log to standard error: as a person reads it, or for the journal.

    *level* is that of our own lines: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_Json())
    elif form == "auto" and is_journal(sys.stderr.fileno(), os.environ):
        handler.setFormatter(_Journal())
    elif sys.stderr.isatty():
        handler.setFormatter(_Terminal())
    else:
        handler.setFormatter(_File())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("llmgw").setLevel(level.upper())
    # It has a line for every request; ours says what changed, not what was asked.
    logging.getLogger("httpx").setLevel(logging.WARNING)
