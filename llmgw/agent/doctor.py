"""Why a node is as it is: every condition that it needs, looked at once.

A check that depends on another that is not well is skipped, with the reason: one cause
is one fault.
"""

import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmgw.agent import door, equipment, host
from llmgw.agent.finding import Finding, Verdict, told
from llmgw.agent.inventory import Inventory
from llmgw.agent.reach import in_dns
from llmgw.agent.resolve import Resolved
from llmgw.config.address import masked
from llmgw.config.load import unwritten
from llmgw.discovery.node import Here, toward
from llmgw.errors import (
    ConfigError,
    Fault,
    LlmgwError,
    Refused,
    SessionError,
    TlsError,
    Unreachable,
)
from llmgw.session import rules
from llmgw.session.address import take_apart
from llmgw.session.dial import Dialer
from llmgw.session.http import Connection
from llmgw.tls import Certificates, span
from llmgw.wire import Leader, Problem

# What cannot be looked at while the file is wrong. Without these lines a person took
# what was not said for well.
_BY_THE_FILE = (
    "certificates",
    "control planes",
    "leader",
    "clock",
    "address",
    "directories and space",
    "models",
    "engines",
    "weights_cache",
    "state_dir",
    "ports",
    "reached from the control plane",
)
_TLS_FIRST = "the certificates come first"
_UNREACHED = (
    "see that it runs there, that the address is right, and that no firewall is between"
)
_ANOTHER = "see that it is a control plane that listens there, and what its log says"
SKEW = 5.0


async def examine(
    found: Resolved, socket_path: Path, environ: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """One finding after another, as they are had."""
    for one in _configuration(found):
        yield one
    certificates, finding = await anyio.to_thread.run_sync(_certificates, found)
    yield finding
    dates: list[float] = []
    refused = await anyio.to_thread.run_sync(_refused, socket_path)
    async for one in _servers(found, certificates, finding, dates, refused):
        yield one
    yield clock(dates)
    for one in address(found):
        yield one
    yield host.proxies(environ)
    inventory = Inventory(found.config)
    await inventory.once()
    for one in equipment.findings(inventory):
        yield one
    for one in await anyio.to_thread.run_sync(_machine, found, inventory):
        yield one
    yield await _reached(found, socket_path)


async def examine_without(
    wrong: ConfigError, environ: Mapping[str, str]
) -> AsyncIterator[Finding]:
    """The same where the file is *wrong*: what needs no file, and what was left out."""
    for fault in wrong.by_line:
        yield _of_the_file(fault, "fault")
    for check in _BY_THE_FILE:
        why = "the configuration comes first"
        yield Finding(check=check, verdict="skipped", evidence=why)
    yield host.proxies(environ)
    inventory = Inventory(unwritten())
    await inventory.once(*equipment.OF_THE_MACHINE)
    for one in equipment.findings(inventory, equipment.OF_THE_MACHINE):
        yield one
    for one in await anyio.to_thread.run_sync(_any_machine, inventory):
        yield one


def _configuration(found: Resolved) -> Iterator[Finding]:
    # Of the address there is a check of its own: one cause is told once.
    warnings = [one for one in found.warnings if not one.key.startswith("mgmt_")]
    for one in warnings:
        yield _of_the_file(one, "warning")
    if not warnings:
        yield Finding(check="configuration", verdict="ok", evidence=found.file)


def _of_the_file(fault: Fault, verdict: Verdict) -> Finding:
    return Finding(
        check="configuration",
        verdict=verdict,
        evidence=f"{fault.place}: {fault.what}" if fault.place else fault.what,
        fix=fault.fix,
    )


# The link -------------------------------------------------------------------------


def _certificates(found: Resolved) -> tuple[Certificates | None, Finding]:
    config = found.config
    name = "certificates"
    if not config.tls.enabled:
        return None, _without_tls(found)
    certificates = Certificates(config.tls, config.node_id or "")
    certificates.refresh()
    problems = certificates.problems()
    if problems:
        return certificates, told(name, problems[0])
    evidence = f"name {config.node_id}, {span(certificates.expires_s or 0.0)} left"
    return certificates, Finding(check=name, verdict="ok", evidence=evidence)


def _without_tls(found: Resolved) -> Finding:
    """That servers are dialled without is told with the file, as `check` tells it."""
    if any(take_apart(server).is_exposed for server in found.config.servers):
        evidence = "TLS is off, of which the configuration's lines warn"
        return Finding(check="certificates", verdict="skipped", evidence=evidence)
    evidence = "none are needed: every control plane is on this machine"
    return Finding(check="certificates", verdict="ok", evidence=evidence)


async def _servers(
    found: Resolved,
    certificates: Certificates | None,
    tls: Finding,
    dates: list[float],
    refused: list[Problem],
) -> AsyncIterator[Finding]:
    limit = found.config.link.dial_timeout
    leaders: list[str] = []
    for server in found.config.servers:
        check = f"control plane {masked(server)}"
        if tls.verdict == "fault":
            yield Finding(check=check, verdict="skipped", evidence=_TLS_FIRST)
            continue
        dialer = Dialer(certificates, limit=limit, user_timeout=limit)
        try:
            said, date = await _leader(dialer, server, limit)
        except TlsError as error:
            yield Finding(
                check=check, verdict="fault", evidence=error.what, fix=error.fix
            )
        except (Unreachable, Refused) as error:
            # Another may lead: one that is down alone is no fault of this node.
            fix = error.fix or await anyio.to_thread.run_sync(_way_on, server, error)
            yield Finding(check=check, verdict="warning", evidence=error.what, fix=fix)
        else:
            dates += [] if date is None else [date - time.time()]
            leaders += [server] if said.leader else []
            yield Finding(check=check, verdict="ok", evidence=_role(said))
    for problem in refused:
        yield told("accepted by a control plane", problem)
    # Of one that was told of a higher epoch it is known why it leads no more.
    if tls.verdict == "fault":
        yield Finding(check="leader", verdict="skipped", evidence=_TLS_FIRST)
    elif leaders or not refused:
        yield _one_leads(leaders)


def _way_on(server: str, error: SessionError) -> str:
    """What to look at where there was no answer, or another one."""
    if isinstance(error, Refused):
        return _ANOTHER
    address = take_apart(server)
    is_unresolved = toward(address, Here()).is_unresolved
    return in_dns(address.host) if is_unresolved else _UNREACHED


def _role(said: Leader) -> str:
    if said.leader:
        return f"leads, epoch {said.epoch}"
    if said.url is None:
        return "is a standby, and does not say of whom"
    return f"is a standby of {masked(said.url)}"


def _refused(socket_path: Path) -> list[Problem]:
    """What the agent was refused for and only a person can clear up. Nothing without an
    agent: that it cannot be asked is told with the way back.
    """
    try:
        status = door.ask_once(socket_path, "status")
        problems = msgspec.convert(status["problems"], list[Problem])
    except (LlmgwError, KeyError, TypeError, msgspec.ValidationError):
        return []
    return [one for one in problems if one.code in rules.TOLD]


def _one_leads(leaders: list[str]) -> Finding:
    if leaders:
        evidence = f"{masked(leaders[0])} leads"
        return Finding(check="leader", verdict="ok", evidence=evidence)
    return Finding(
        check="leader",
        verdict="fault",
        evidence="no control plane of the list leads",
        fix="look at the lines above; engines that run stay as they are",
    )


async def _leader(
    dialer: Dialer, server: str, limit: float
) -> tuple[Leader, float | None]:
    connection: Connection = await dialer.dial(server)
    try:
        with anyio.fail_after(limit):
            said = await connection.ask("GET", "/v1/leader", None, Leader)
    except TimeoutError as error:
        raise Unreachable(f"connects, and says nothing in {limit:g} s") from error
    finally:
        await connection.aclose()
    return said, connection.date


def clock(dates: list[float]) -> Finding:
    """*dates*: by how much those of the control planes are ahead. Nothing of ours
    depends on it but certificates, and people who read logs.
    """
    if not dates:
        why = "no control plane has told its time"
        return Finding(check="clock", verdict="skipped", evidence=why)
    worst = max(dates, key=abs)
    if abs(worst) < SKEW:
        evidence = f"within {SKEW:g} s of the control plane's"
        return Finding(check="clock", verdict="ok", evidence=evidence)
    behind = "behind" if worst > 0 else "ahead of"
    return Finding(
        check="clock",
        verdict="warning",
        evidence=f"{abs(worst):.0f} s {behind} the control plane's",
        fix="synchronise it: timedatectl set-ntp true",
    )


def address(found: Resolved) -> Iterator[Finding]:
    """Which address engines are reached on, why that one, and what is off with it."""
    config, check = found.config, "address"
    if config.mgmt_addr is None:
        why = next(one for one in found.warnings if one.key == "mgmt_addr")
        yield Finding(check=check, verdict="fault", evidence=why.what, fix=why.fix)
        return
    origins = [
        f"{key} {value}: {found.origin[key]}"
        for key, value in (
            ("mgmt_addr", config.mgmt_addr),
            ("mgmt_interface", config.mgmt_interface),
        )
        if value is not None and key in found.origin
    ]
    warned = [one for one in found.warnings if one.key.startswith("mgmt_")]
    if not warned:
        yield Finding(check=check, verdict="ok", evidence="; ".join(origins))
    for number, one in enumerate(warned):
        # Each has a fix of its own; the first says what there is.
        evidence = "; ".join([*origins, one.what]) if number == 0 else one.what
        yield Finding(check=check, verdict="warning", evidence=evidence, fix=one.fix)


# The machine ----------------------------------------------------------------------


def _machine(found: Resolved, inventory: Inventory) -> list[Finding]:
    known = {
        problem.where
        for problem in inventory.by_fact().get("disks", ())
        if problem.severity == "error"
    }
    return [
        *_any_machine(inventory),
        *host.writable(inventory.value("disks") or [], known),
        host.ports(found.config.supervisor.port_range),
    ]


def _any_machine(inventory: Inventory) -> list[Finding]:
    unit = host.settings()
    return [
        host.device_nodes(),
        host.memlock(bool(inventory.value("hcas")), unit),
        host.unit(unit),
    ]


# The way back ---------------------------------------------------------------------


async def _reached(found: Resolved, socket_path: Path) -> Finding:
    """T21: the control plane connects to a port where this waits for it."""
    check = "reached from the control plane"
    here = found.config.mgmt_addr
    if here is None:
        return Finding(check=check, verdict="skipped", evidence="the address is first")
    try:
        with _listening(here, found.config.supervisor.port_range) as port:
            answer = await anyio.to_thread.run_sync(_probed, socket_path, here, port)
    except LlmgwError as error:
        return Finding(
            check=check,
            verdict="skipped",
            evidence=f"the agent cannot ask for it: {error.what}",
            fix=error.fix,
        )
    except OSError as error:
        return Finding(
            check=check,
            verdict="fault",
            evidence=f"nothing can listen on {here}: {error.strerror}",
            fix="set mgmt_addr to an address of this machine",
        )
    if answer.get("reachable"):
        evidence = f"it connected to {here} port {port}"
        return Finding(check=check, verdict="ok", evidence=evidence)
    return Finding(
        check=check,
        verdict="fault",
        evidence=f"it cannot connect to {here} port {port}: {answer.get('reason')}",
        fix=f"open ports {found.config.supervisor.port_range} to the control planes",
    )


@contextlib.contextmanager
def _listening(address: str, port_range: str) -> Generator[int]:
    """On a port of the range that is free just now."""
    first, _, last = port_range.partition("-")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # The range's end: engines are given ports from its beginning.
        for port in range(int(last), int(first) - 1, -1):
            try:
                listener.bind((address, port))
                break
            except OSError as error:
                if port == int(first) or error.errno != errno.EADDRINUSE:
                    raise
        listener.listen(4)
        yield listener.getsockname()[1]


def _probed(socket_path: Path, address: str, port: int) -> Mapping[str, Any]:
    for answer in door.ask(socket_path, "probe", address=address, port=port):
        return answer
    raise LlmgwError("the agent has left without an answer", where=str(socket_path))
