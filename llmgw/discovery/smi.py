"""nvidia-smi, where NVML's library cannot be loaded from Python."""

import re
import shutil
import subprocess
from typing import Any

from llmgw.discovery.found import known

# What every version answers, and what an old one refuses the whole question for.
_ALWAYS: tuple[str, ...] = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "memory.free",
    "compute_cap",
    "driver_version",
    "utilization.gpu",
    "temperature.gpu",
)
_NEWER: tuple[str, ...] = (
    "memory.reserved",
    "mig.mode.current",
    "persistence_mode",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "power.limit",
    "power.max_limit",
    "power.draw",
    "clocks.max.sm",
    "clocks.max.memory",
)
_MIB = 1 << 20
_CUDA = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")
_CARD = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_SLICE = re.compile(r"\s+(MIG \S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")


def ask() -> dict[str, Any]:
    """In the shape of NVML's answer. The child that runs this has the deadline."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"error": "there is no nvidia-smi on PATH"}
    fields = (*_ALWAYS, *_NEWER)
    code, said = _query(program, fields)
    if code and "not a valid field" in said:
        fields = _ALWAYS
        code, said = _query(program, fields)
    if code:
        mismatch = 18 if "version mismatch" in said.lower() else None
        return known({"error": said or f"exit {code}", "code": mismatch})
    rows = [
        dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=True))
        for line in said.splitlines()
        if line.count(",") == len(fields) - 1
    ]
    slices = _slices(program) if any(map(_is_cut, rows)) else {}
    cuda = _CUDA.search(_run([program, "--version"])[1])
    return known(
        {
            "driver": rows[0]["driver_version"] if rows else None,
            "cuda": cuda and cuda[1],
            "gpus": [_card(row, slices) for row in rows],
        }
    )


def _query(program: str, fields: tuple[str, ...]) -> tuple[int, str]:
    command = [program, f"--query-gpu={','.join(fields)}"]
    return _run([*command, "--format=csv,noheader,nounits"])


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, check=False)
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        said += done.stderr.decode(errors="replace")
    return done.returncode, said.strip()


def _is_cut(row: dict[str, str]) -> bool:
    return row.get("mig.mode.current") == "Enabled"


def _slices(program: str) -> dict[str, list[dict[str, Any]]]:
    """By card. How much memory a slice has is not said there, and not guessed here."""
    found: dict[str, list[dict[str, Any]]] = {}
    here: list[dict[str, Any]] = []
    for line in _run([program, "-L"])[1].splitlines():
        card, part = _CARD.match(line), _SLICE.match(line)
        if card:
            here = found.setdefault(card[1], [])
        elif part:
            here.append({"uuid": part[3], "name": part[1]})
    return found


def _card(row: dict[str, str], slices: dict[str, Any]) -> dict[str, Any]:
    memory = known(
        {
            name: _bytes(row.get(f"memory.{name}"))
            for name in ("total", "free", "reserved")
        }
    )
    mig = None
    if _is_cut(row):
        mig = {"enabled": True, "slices": slices.get(row["uuid"], [])}
    used = _number(row["utilization.gpu"])
    now = {
        "utilization": None if used is None else used / 100,
        "temperature_c": _number(row["temperature.gpu"]),
        "power_w": _number(row.get("power.draw")),
    }
    limits = {
        "power_w": _number(row.get("power.limit")),
        "power_max_w": _number(row.get("power.max_limit")),
        "sm_mhz": _number(row.get("clocks.max.sm")),
        "memory_mhz": _number(row.get("clocks.max.memory")),
    }
    ecc = {
        "enabled": _switch(row.get("ecc.mode.current")),
        "uncorrected": _number(row.get("ecc.errors.uncorrected.volatile.total")),
    }
    return known(
        {
            "index": _number(row["index"]),
            "uuid": row["uuid"],
            "name": row["name"],
            "bus": row["pci.bus_id"],
            "memory": memory if "total" in memory else None,
            "compute": row["compute_cap"] if "." in row["compute_cap"] else None,
            "mig": mig,
            "persistence": _switch(row.get("persistence_mode")),
            "ecc": known(ecc) or None,
            "limits": known(limits) or None,
            "now": known(now),
        }
    )


def _number(cell: str | None) -> float | int | None:
    """None for `[N/A]` and `[Not Supported]`."""
    try:
        found = float(cell or "")
    except ValueError:
        return None
    return int(found) if found.is_integer() else found


def _bytes(mib: str | None) -> int | None:
    found = _number(mib)
    return None if found is None else int(found * _MIB)


def _switch(cell: str | None) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(cell or "")
