"""The original's answers, and the file that each of its inputs would be."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Vector = dict[str, Any]

TIMES = (
    "heartbeat_interval",
    "reconnect_base",
    "reconnect_max",
    "adopt_ready_timeout",
)

# One input, two answers: `better` of the second is what the rule says.
CONTRADICTED = {
    "server.tls.007": "server.empty.009: https:// alone names no host (C4)",
    "defaults.006": "defaults.007: an empty label is refused (C40)",
    "unit.normalize_one.008": "server.scheme.020: a scheme in capitals is one (C1)",
}


def read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def as_file(vector: Vector) -> dict[str, Any]:
    """What an operator would have written to get the vector's input."""
    written = dict(vector["input"])
    # The version is never read from a file (C42).
    written.pop("version", None)
    for name in TIMES:
        if name in written:
            written[name] = f"{written[name]}ns"
    if "fabrics" in written:
        written["fabrics"] = [
            {"name": fabric["name"], "hcas": [fabric["hca"]]}
            for fabric in written["fabrics"]
        ]
    if vector.get("base") == "zero":
        written.setdefault("discovery", {"prefer_nvml": False})
    return written


def save(vector: Vector, folder: Path) -> Path:
    path = folder / "agent.json"
    path.write_text(json.dumps(as_file(vector), ensure_ascii=False, indent=1))
    return path


def wanted(vector: Vector) -> tuple[str, dict[str, Any]]:
    """The outcome, and the fields that are wanted of what is accepted."""
    better = vector.get("better", {})
    outcome = better.get("outcome", "refuse" if "error" in vector else "accept")
    return outcome, vector.get("expect", {}) | better.get("expect", {})
