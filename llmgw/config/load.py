"""Read a configuration file: every fault of it at once, or a whole Config.

Looks at the file and at nothing else: no name is resolved, no path opened, no host
name read. What the machine says is filled in by agent/resolve.py.
"""

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmgw import files
from llmgw.config.convert import Converter
from llmgw.config.fields import ROOT
from llmgw.config.keys import Config
from llmgw.config.normalise import normalise
from llmgw.config.report import Report, dotted
from llmgw.config.syntax import READERS, Document, Malformed
from llmgw.errors import AS_ANOTHER_USER, ConfigError, Fault

DEFAULT_FILE = "/etc/llmgw/agent.toml"
LARGEST = 1024 * 1024


class Loaded(Struct, frozen=True, kw_only=True):
    """A file that is right, and what was noticed in it.

    *places* holds the line of every key that is written, by its name (`tls.key_file`,
    `servers[0]`); what is not in there has its default.
    """

    config: Config
    file: str
    places: dict[str, int]
    warnings: tuple[Fault, ...] = ()


class Examined(Struct, frozen=True, kw_only=True):
    """What became of a file: the values that could be read, and the faults."""

    file: str
    values: dict[str, Any]
    places: dict[str, int]
    faults: tuple[Fault, ...]
    warnings: tuple[Fault, ...]


def default_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the file lies if nobody says: the one thing that a variable sets."""
    return Path(environment.get("LLMGW_CONFIG") or DEFAULT_FILE)


def load(path: Path, *, allow_unknown_keys: bool = False) -> Loaded:
    """Raises ConfigError, which carries every fault, and nothing else."""
    examined = examine(path, allow_unknown_keys=allow_unknown_keys)
    if examined.faults:
        raise ConfigError(examined.faults)
    return loaded(examined)


def loaded(examined: Examined) -> Loaded:
    """The configuration of a file without faults."""
    assert not examined.faults, "only a file without faults is a configuration"
    return Loaded(
        config=Config(**examined.values),
        file=examined.file,
        places=examined.places,
        warnings=examined.warnings,
    )


def unwritten() -> Config:
    """What is in force where there is no file, but for the servers."""
    report = Report("", {})  # that there is no server is all it has to say
    return Config(**normalise({}, {}, report))


def examine(path: Path, *, allow_unknown_keys: bool = False) -> Examined:
    """All that can be said of a file, without raising."""
    file = str(path)
    try:
        document = _read(path)
    except Malformed as error:
        fault = Fault(file=file, line=error.line, what=error.what, fix=error.fix)
        return Examined(file=file, values={}, places={}, faults=(fault,), warnings=())
    report = Report(file, document.lines)
    converter = Converter(report, allow_unknown_keys=allow_unknown_keys)
    values = converter.table(document.values, ROOT, ())
    values = normalise(values, document.values, report)
    return Examined(
        file=file,
        values=values,
        places={dotted(place): line for place, line in document.lines.items()},
        faults=report.faults,
        warnings=report.warnings,
    )


def _read(path: Path) -> Document:
    reader = READERS.get(path.suffix.lower())
    try:
        if reader is None:
            raise _of_no_language(path)
        data = files.read(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            what = "is larger than 1 MiB, which no configuration is"
            raise Malformed(what) from error
        what = f"cannot be read: {error.strerror}"
        raise Malformed(what, fix=_fix(error, path)) from error
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed("is no path: it has a NUL character in it") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Malformed(
            f"is not text: byte 0x{data[error.start]:02x} is no UTF-8", line
        ) from error
    return reader(text)


def _of_no_language(path: Path) -> Malformed:
    """OSError where a better name would not help: nothing that can be read is there."""
    if stat.S_ISDIR(path.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return Malformed(
        f'is named "{path.name}", and how it is read goes by its extension',
        fix="name it .toml, .yaml or .json",
    )


def _fix(error: OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        example = "`llmgw schema --format example-toml` prints one to begin with"
        return f"write it, or name another; {example}"
    if isinstance(error, IsADirectoryError):
        return "name the file in it"
    if isinstance(error, PermissionError):
        return f"{AS_ANOTHER_USER}: {path} is not yours to read"
    return ""
