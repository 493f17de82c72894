"""What the file leaves open is filled in from the machine, with the reason.

`load` says what is written; this says what is in force, and where each value is from.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from llmgw import tls
from llmgw.agent import reach
from llmgw.agent.landing import landing
from llmgw.config.keys import Config
from llmgw.config.load import Examined, Loaded, examine, loaded
from llmgw.config.origin import Origin, origins
from llmgw.discovery.node import Here, Machine
from llmgw.errors import ConfigError, Fault, TlsError

NO_NAME = "node_id is not set and the hostname could not be read"
# Names that many machines have at once.
_NOBODY = ("(none)", "localhost", "localhost.localdomain")


class Resolved(Struct, frozen=True, kw_only=True):
    """*config*: in force; *written*: as the file has it; *origin* by a key's name."""

    config: Config
    written: Config
    file: str
    origin: dict[str, Origin]
    warnings: tuple[Fault, ...]


def read(
    path: Path,
    machine: Machine | None = None,
    *,
    without_files: bool = False,
    allow_unknown_keys: bool = False,
) -> Resolved:
    """Load and resolve. ConfigError has the faults of both, the original's first.

    *without_files*: the certificates are not opened.
    """
    machine = machine or Here()
    examined = examine(path, allow_unknown_keys=allow_unknown_keys)
    if examined.faults:
        raise ConfigError(_with_identity(examined, machine))
    return resolve(loaded(examined), machine, without_files=without_files)


def _with_identity(examined: Examined, machine: Machine) -> tuple[Fault, ...]:
    """The host name is asked for although the file is wrong: all is told at once."""
    faults = examined.faults
    readable = bool(examined.places or examined.values)
    if not readable or "node_id" in examined.places or machine.hostname():
        return faults
    # After tls and the servers, before everything else.
    before = [f for f in faults if f.key.startswith(("tls", "server")) or not f.key]
    after = [fault for fault in faults if fault not in before]
    return (*before, _no_name(examined.file), *after)


def _no_name(file: str) -> Fault:
    return Fault(file=file, key="node_id", what=NO_NAME, fix="set node_id")


def resolve(
    found: Loaded, machine: Machine | None = None, *, without_files: bool = False
) -> Resolved:
    """ConfigError if the machine and the file do not go together."""
    machine = machine or Here()
    work = _Work(found, machine)
    work.identity()
    work.reach()
    work.threads()
    work.cache()
    if not without_files:
        work.certificates()
    if work.faults:
        raise ConfigError(tuple(work.faults))
    return Resolved(
        config=work.config,
        written=found.config,
        file=found.file,
        origin=work.origin,
        warnings=(*found.warnings, *work.warnings),
    )


class _Work:
    def __init__(self, found: Loaded, machine: Machine) -> None:
        self.found = found
        self.machine = machine
        self.config = found.config
        self.origin = origins(found)
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []

    def _set(self, key: str, value: str | None, detail: str) -> None:
        self.config = msgspec.structs.replace(self.config, **{key: value})
        self.origin[key] = Origin("probe", detail)

    def _fault(self, key: str, what: str, fix: str = "") -> Fault:
        line = self.found.places.get(key) or None
        return Fault(file=self.found.file, line=line, key=key, what=what, fix=fix)

    def _warn(self, key: str, what: str, fix: str = "") -> None:
        self.warnings.append(self._fault(key, what, fix))

    def identity(self) -> None:
        name = self.machine.hostname()
        if self.config.node_id is None:
            if not name:
                self.faults.append(_no_name(self.found.file))
                return
            self._set("node_id", name, "the host name")
            if name in _NOBODY:
                self._warn(
                    "node_id",
                    f'the host name "{name}" does not tell machines apart: a second '
                    "node like it would register as the first",
                    "set node_id",
                )
        elif self.config.node_id in _NOBODY:
            self._warn("node_id", "does not tell machines apart", "write another")
        if self.config.hostname is None:
            if name:
                self._set("hostname", name, "the host name")
            else:
                self._set("hostname", self.config.node_id, "node_id: no host name")
                self._warn("hostname", "there is no host name; node_id is shown")

    def reach(self) -> None:
        """The address engines are reached on, and its interface."""
        answer = reach.find(self.config, self.machine)
        for key, (value, detail) in answer.found.items():
            self._set(key, value, detail)
        for key, what, fix in answer.warnings:
            self._warn(key, what, fix)

    def threads(self) -> None:
        """The number itself hangs on how many replicas there are at a time."""
        if self.config.engines.llamacpp.threads is None:
            count = len(os.sched_getaffinity(0))
            detail = f"half of the {count} CPUs allowed here, shared by CPU replicas"
            self.origin["engines.llamacpp.threads"] = Origin("default", detail)

    def cache(self) -> None:
        found, written = landing(self.found, self.machine), self.config.weights_cache
        if isinstance(found, Fault):
            # Engines may serve what lies there already: an agent that did not start
            # because a mount turned read-only would leave them alone.
            self.warnings.append(found)
        elif found != written:
            detail = f"{written} cannot be written to; the next of model_dirs"
            self._set("weights_cache", found, detail)
            self._warn("weights_cache", f"{detail}, {found}, is used")

    def certificates(self) -> None:
        """They are there, fit together and name this node."""
        settings, node_id = self.config.tls, self.config.node_id
        if not settings.enabled or node_id is None:
            return
        files: Mapping[str, str] = {
            settings.cert_file or "": "tls.cert_file",
            settings.key_file or "": "tls.key_file",
            settings.ca_file or "": "tls.ca_file",
        }
        cert, key, ca = map(Path, files)
        try:
            pair = tls.read(cert, key, ca)
        except TlsError as error:
            name = files.get(error.where, "tls")
            what = f"{error.where} {error.what}"
            self.faults.append(self._fault(name, what, error.fix))
            return
        name = pair.certificate.common_name
        if name != node_id:
            what = (
                f'is "{node_id}" and the certificate {cert} is for "{name}"; a '
                "control plane refuses that"
            )
            fix = f'set node_id = "{name}", or issue a certificate for "{node_id}"'
            self.faults.append(self._fault("node_id", what, fix))
        for problem in tls.condition(
            pair.certificate, name, time.time(), where=str(cert)
        ):
            self._warn("tls.cert_file", problem.what, problem.fix or "")
