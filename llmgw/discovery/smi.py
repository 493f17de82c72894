"""nvidia-smi, where NVML's library cannot be loaded from Python."""

import shutil
import subprocess
from typing import Any

from llmgw.discovery.found import known

_FIELDS: tuple[str, ...] = (
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
_MIB = 1 << 20


def ask() -> dict[str, Any]:
    """In the shape of NVML's answer. The child that runs this has the deadline."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"error": "there is no nvidia-smi on PATH"}
    query = [f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run([program, *query], capture_output=True, check=False)
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        words = (said + done.stderr.decode(errors="replace")).strip()
        code = 18 if "version mismatch" in words.lower() else None
        return known({"error": words or f"exit {done.returncode}", "code": code})
    rows = [
        dict(zip(_FIELDS, (cell.strip() for cell in line.split(",")), strict=True))
        for line in said.splitlines()
        if line.count(",") == len(_FIELDS) - 1
    ]
    return known(
        {
            "driver": rows[0]["driver_version"] if rows else None,
            "gpus": [_card(row) for row in rows],
        }
    )


def _card(row: dict[str, str]) -> dict[str, Any]:
    total, free = _number(row["memory.total"]), _number(row["memory.free"])
    memory = None
    if total is not None:
        memory = known({"total": total * _MIB, "free": free and free * _MIB})
    used = _number(row["utilization.gpu"])
    return known(
        {
            "index": _number(row["index"]),
            "uuid": row["uuid"],
            "name": row["name"],
            "bus": row["pci.bus_id"],
            "memory": memory,
            "compute": row["compute_cap"] if "." in row["compute_cap"] else None,
            "now": known(
                {
                    "utilization": None if used is None else used / 100,
                    "temperature_c": _number(row["temperature.gpu"]),
                }
            ),
        }
    )


def _number(cell: str) -> int | None:
    """None for `[N/A]` and `[Not Supported]`."""
    return int(cell) if cell.isdigit() else None
