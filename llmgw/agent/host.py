"""Conditions of this machine that are no facts of its inventory, for the doctor."""

import grp
import os
import pwd
import resource
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from llmgw.agent.finding import Finding

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "kfd", "dri/renderD*")
_RDMA = ("infiniband/uverbs*", "infiniband/rdma_cm")
_MINE = {
    "written": "chown it to the agent's user",
    "made": "make it, and chown it to the agent's user",
}
UNIT = "llmgw-agent.service"


def proxies(environ: Mapping[str, str]) -> Finding:
    found = [name for name in environ if name.lower() in _PROXIES and environ[name]]
    if not found:
        return Finding(
            check="proxies", verdict="ok", evidence="none in the environment"
        )
    evidence = f"{', '.join(sorted(found))}: only fetching weights goes through it"
    return Finding(check="proxies", verdict="ok", evidence=evidence)


def device_nodes(dev: Path = Path("/dev")) -> Finding:
    """Whether the cards' and adapters' files may be opened by this user."""
    nodes = sorted(node for glob in (*_NODES, *_RDMA) for node in dev.glob(glob))
    shut = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if not shut:
        evidence = f"{len(nodes)} can be opened" if nodes else "none are needed"
        return Finding(check="device nodes", verdict="ok", evidence=evidence)
    groups = sorted({_group(node) for node in shut})
    return Finding(
        check="device nodes",
        verdict="fault",
        evidence=f"{_user(os.geteuid())} may not open {', '.join(map(str, shut))}",
        fix=f"put the agent's user into {', '.join(groups)}",
    )


def _group(node: Path) -> str:
    number = node.stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def memlock(is_needed: bool, unit: Mapping[str, str]) -> Finding:
    """RDMA registers its buffers as locked memory. *unit*: its settings; engines have
    the limits of the agent's unit, and not of the shell that this runs in.
    """
    said = unit.get("LimitMEMLOCK")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = int(said) if said and said.isdigit() else soft
    endless = said == "infinity" or limit == resource.RLIM_INFINITY
    evidence = "unlimited" if endless else f"{limit // 1024} KiB"
    evidence += f" in {UNIT}" if said else " in this shell"
    if endless or not is_needed:
        return Finding(check="memlock", verdict="ok", evidence=evidence)
    return Finding(
        check="memlock",
        verdict="warning",
        evidence=f"{evidence}, and RDMA locks all of its buffers",
        fix="LimitMEMLOCK=infinity in the unit",
    )


def writable(
    disks: list[dict[str, Any]], known: Collection[str | None] = ()
) -> Iterator[Finding]:
    """*disks*: as found by a child, for the mount may be dead. *known*: those of which
    it was told already why they cannot be written.
    """
    user = _user(os.geteuid())
    for one in disks:
        use, path = one["use"], one["path"]
        if use not in ("state_dir", "weights_cache") or f"{use}: {path}" in known:
            continue
        done = "written" if one.get("exists", True) else "made"
        if "writable" not in one:
            evidence = f"{path}: {one.get('reason') or 'nothing is known of it'}"
            yield Finding(check=use, verdict="fault", evidence=evidence)
        elif one["writable"]:
            absent = "" if done == "written" else " is not there yet, and"
            evidence = f"{path}{absent} can be {done} by {user}"
            yield Finding(check=use, verdict="ok", evidence=evidence)
        else:
            yield Finding(
                check=use,
                verdict="fault",
                evidence=f"{path} cannot be {done} by {user}",
                fix=f"{_MINE[done]}, or name another folder as {use}",
            )


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def ports(port_range: str, root: Path = Path("/")) -> Finding:
    """How much of the range others listen on; engines of ours are among them."""
    first, _, last = port_range.partition("-")
    wanted = range(int(first), int(last) + 1)
    taken = sorted(_listening(root) & set(wanted))
    evidence = f"{len(wanted) - len(taken)} of {len(wanted)} are free ({port_range})"
    if len(taken) < len(wanted):
        return Finding(check="ports", verdict="ok", evidence=evidence)
    return Finding(
        check="ports",
        verdict="fault",
        evidence=evidence,
        fix="name a larger supervisor.port_range",
    )


def _listening(root: Path) -> set[int]:
    found: set[int] = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/net" / name).read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6 has no such file
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def settings(root: Path = Path("/")) -> dict[str, str]:
    """What systemd says of the agent's unit; empty where there is no systemd."""
    systemctl = shutil.which("systemctl")
    if systemctl is None or not (root / "run/systemd/system").is_dir():
        return {}
    wanted = "LoadState,KillMode,Delegate,LimitMEMLOCK"
    try:
        show = subprocess.run(
            [systemctl, "show", UNIT, "-p", wanted],
            capture_output=True,
            check=False,
            text=True,
            timeout=5,
        ).stdout
    except subprocess.TimeoutExpired:
        return {}
    found = dict(line.split("=", 1) for line in show.splitlines() if "=" in line)
    return found if found.get("LoadState") == "loaded" else {}


def unit(said: Mapping[str, str]) -> Finding:
    """Whether engines outlive a restart of the agent. *said*: the unit's settings."""
    check = "unit"
    if not said:
        why = f"systemd has no {UNIT} here"
        return Finding(check=check, verdict="skipped", evidence=why)
    wrong = [
        f"{name}={said.get(name)}"
        for name, right in (("KillMode", ("process", "mixed")), ("Delegate", ("yes",)))
        if said.get(name) not in right
    ]
    if not wrong:
        evidence = f"KillMode={said['KillMode']} Delegate={said['Delegate']}"
        return Finding(check=check, verdict="ok", evidence=evidence)
    return Finding(
        check=check,
        verdict="fault",
        evidence=f"{', '.join(wrong)}: a restart of the agent would end its engines",
        fix=f"KillMode=process and Delegate=yes in {UNIT}",
    )
