"""Conditions of this machine that are no facts of its inventory, for the doctor."""

import grp
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgw.agent.finding import Finding

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "kfd", "dri/renderD*")
_RDMA = ("infiniband/uverbs*", "infiniband/rdma_cm")
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
        evidence=f"may not be opened: {', '.join(map(str, shut))}",
        fix=f"put the agent's user into {', '.join(groups)}",
    )


def _group(node: Path) -> str:
    number = node.stat().st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def memlock(is_needed: bool) -> Finding:
    """RDMA registers its buffers as locked memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    endless = soft == resource.RLIM_INFINITY
    evidence = "unlimited" if endless else f"{soft // 1024} KiB"
    if endless or not is_needed:
        return Finding(check="memlock", verdict="ok", evidence=evidence)
    return Finding(
        check="memlock",
        verdict="warning",
        evidence=f"{evidence}, and RDMA locks all of its buffers",
        fix="LimitMEMLOCK=infinity in the unit",
    )


def writable(folders: Mapping[str, str | None]) -> Iterator[Finding]:
    for use, folder in folders.items():
        if folder is None:
            continue
        path = Path(folder)
        while not path.exists() and path != path.parent:
            path = path.parent
        if os.access(path, os.W_OK | os.X_OK):
            yield Finding(check=use, verdict="ok", evidence=f"{folder} can be written")
            continue
        yield Finding(
            check=use,
            verdict="fault",
            evidence=f"{path} cannot be written by user {os.geteuid()}",
            fix=f"chown it to the agent's user, or name another folder as {use}",
        )


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


def unit(root: Path = Path("/"), show: str | None = None) -> Finding:
    """Whether engines outlive a restart of the agent. *show*: systemctl's answer."""
    check = "unit"
    if show is None:
        if not (root / "run/systemd/system").is_dir():
            why = "this machine is not run by systemd"
            return Finding(check=check, verdict="skipped", evidence=why)
        show = _show()
    said = dict(line.split("=", 1) for line in show.splitlines() if "=" in line)
    if said.get("LoadState") != "loaded":
        why = f"there is no {UNIT}"
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


def _show() -> str:
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return ""
    try:
        return subprocess.run(
            [systemctl, "show", UNIT, "-p", "LoadState,KillMode,Delegate"],
            capture_output=True,
            check=False,
            text=True,
            timeout=5,
        ).stdout
    except subprocess.TimeoutExpired:
        return ""
