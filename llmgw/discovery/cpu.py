"""CPUs: how many this process may use, not how many there are."""

import os
from pathlib import Path
from typing import Any

from llmgw.discovery import cgroup
from llmgw.discovery.found import (
    Found,
    fields,
    known,
    names,
    number,
    numbers,
    pressure,
    ranges,
    text,
)

# What engines choose their code by: x86 flags, then Arm's.
# fmt: off
FEATURES = (
    "avx", "avx2", "avx_vnni", "fma", "f16c", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)
# fmt: on


def survey(root: Path = Path("/")) -> Found:
    source = "/proc/self/status, /proc/cpuinfo, /sys/devices/system/cpu, cgroup"
    status = fields(text(root / "proc/self/status"))
    online = numbers(text(root / "sys/devices/system/cpu/online") or "")
    allowed = numbers(status.get("Cpus_allowed_list", ""))
    # The mask of a small machine often names CPUs that could be plugged in.
    allowed = [cpu for cpu in allowed if not online or cpu in online]
    if not allowed:
        return Found(None, source, "/proc/self/status does not say Cpus_allowed_list")
    quota = cgroup.limits(root).cpus
    usable = len(allowed)
    if quota is not None:
        usable = max(1, min(usable, int(quota)))
    info = fields(text(root / "proc/cpuinfo"))
    flags = (info.get("flags") or info.get("Features") or "").split()
    value = {
        "model": _model(info),
        "arch": _arch(info),
        "online": len(online) or len(allowed),
        "allowed": ranges(allowed),
        "quota": quota,
        "usable": usable,
        **_cores(root, online or allowed, set(allowed)),
        "features": [name for name in FEATURES if name in flags],
        "now": known({"pressure": pressure(text(root / "proc/pressure/cpu"))}),
    }
    return Found(known(value), source)


def _model(info: dict[str, str]) -> str | None:
    return info.get("model name") or info.get("Model") or info.get("CPU part")


def _arch(info: dict[str, str]) -> str:
    if "flags" in info:
        return "x86_64"
    return "aarch64" if "Features" in info else os.uname().machine


def _cores(root: Path, online: list[int], allowed: set[int]) -> dict[str, Any]:
    """Cores and sockets, and which CPUs are the fast ones of a hybrid."""
    cores: set[tuple[int | None, int | None]] = set()
    ours: set[tuple[int | None, int | None]] = set()
    clocks: dict[int, list[int]] = {}
    for cpu in online:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        topology = folder / "topology"
        package = number(topology / "physical_package_id")
        core = (package, number(topology / "core_id"))
        if core[1] is None:
            continue
        cores.add(core)
        if cpu in allowed:
            ours.add(core)
        clock = number(folder / "cpufreq/cpuinfo_max_freq")
        if clock is not None:
            clocks.setdefault(clock, []).append(cpu)
    if not cores:
        return {}
    return {
        "cores": len(cores),
        "allowed_cores": len(ours),
        "sockets": len({package for package, _ in cores}),
        "smt": len(online) > len(cores),
        "kinds": _kinds(root, clocks),
    }


def _kinds(root: Path, clocks: dict[int, list[int]]) -> dict[str, str] | None:
    """Which CPUs of a hybrid are fast and which are slow; None: all are alike."""
    said = {
        kind: text(root / f"sys/devices/{folder}/cpus")
        for kind, folder in (("performance", "cpu_core"), ("efficiency", "cpu_atom"))
    }
    found = {kind: cpus for kind, cpus in said.items() if cpus}
    if found:
        return found
    # Arm has no such list. Turbo bins differ by little: a quarter is another core.
    if clocks and max(clocks) > 1.25 * min(clocks):
        middle = (max(clocks) + min(clocks)) / 2
        fast = [cpu for clock, cpus in clocks.items() if clock > middle for cpu in cpus]
        slow = [
            cpu for clock, cpus in clocks.items() if clock <= middle for cpu in cpus
        ]
        return {"performance": ranges(fast), "efficiency": ranges(slow)}
    return None


def nodes(root: Path = Path("/")) -> tuple[tuple[int, ...], ...]:
    """The CPU numbers of each NUMA node."""
    top = root / "sys/devices/system/node"
    found = [
        tuple(numbers(text(top / name / "cpulist") or ""))
        for name in names(top)
        if name.startswith("node") and name[4:].isdigit()
    ]
    return tuple(cpus for cpus in found if cpus)
