"""AMD cards, as the amdgpu driver shows them under /sys."""

from pathlib import Path
from typing import Any

from llmgw.discovery.found import known, names, number, text


def gpus(root: Path, cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """*cards*: AMD's of those on the bus. One without its driver cannot be used."""
    found: list[dict[str, Any]] = []
    for card in cards:
        folder = root / "sys/bus/pci/devices" / card["bus"]
        total = number(folder / "mem_info_vram_total")
        if card.get("driver") != "amdgpu" or total is None:
            continue
        used = number(folder / "mem_info_vram_used")
        busy = number(folder / "gpu_busy_percent")
        unique = text(folder / "unique_id")
        kept = ("bus", "vendor", "numa", "pcie")
        found.append(
            known(
                {
                    **{key: card[key] for key in kept if key in card},
                    "uuid": f"GPU-{unique.removeprefix('0x')}" if unique else None,
                    "name": text(folder / "product_name") or f"AMD {card['device']}",
                    "memory": total,
                    "compute": _compute(root, card["bus"]),
                    "xgmi": _hive(folder),
                    "now": known(
                        {
                            "memory_free": None if used is None else total - used,
                            "utilization": None if busy is None else busy / 100,
                        }
                    ),
                }
            )
        )
    return found


def _hive(folder: Path) -> str | None:
    """Cards of one hive reach each other by XGMI, AMD's NVLink."""
    return text(folder / "xgmi_hive_info/xgmi_hive_id")


def _compute(root: Path, bus: str) -> str | None:
    """`gfx942`, from the compute driver's node that has this bus address."""
    top = root / "sys/class/kfd/kfd/topology/nodes"
    domain, _, rest = bus.partition(":")
    number_of_bus, _, slot = rest.partition(":")
    device, _, function = slot.partition(".")
    location = int(number_of_bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
    for node in names(top):
        pairs = [
            line.split()
            for line in (text(top / node / "properties") or "").splitlines()
        ]
        said = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
        here = (said.get("domain", 0), said.get("location_id"))
        version = said.get("gfx_target_version", 0)
        if here == (int(domain, 16), location) and version:
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            return f"gfx{major}{minor:x}{step:x}"
    return None
