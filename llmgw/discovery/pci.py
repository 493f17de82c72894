"""Graphics cards and accelerators on the PCI bus, whatever their driver says."""

from pathlib import Path
from typing import Any

from llmgw.discovery.found import known, names, number, target, text

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
VENDORS = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}
# Display controllers, and processing accelerators (Instinct since MI300).
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)


def cards(root: Path) -> list[dict[str, Any]]:
    """In the order of the bus: bus, vendor, device number, driver, NUMA node, link."""
    top = root / "sys/bus/pci/devices"
    found: list[dict[str, Any]] = []
    for bus in names(top):
        kind = number(top / bus / "class") or 0
        vendor = VENDORS.get(number(top / bus / "vendor") or 0)
        # The small display chip of a server board is no card to compute on.
        if kind >> 8 not in _CLASSES or vendor in (None, "intel"):
            continue
        node = number(top / bus / "numa_node")
        found.append(
            known(
                {
                    "bus": bus,
                    "vendor": vendor,
                    "device": text(top / bus / "device"),
                    "driver": target(top / bus / "driver"),
                    "numa": None if node is None or node < 0 else node,
                    "pcie": _link(top / bus),
                }
            )
        )
    return found


def _link(folder: Path) -> dict[str, str] | None:
    found = {
        "speed": text(folder / "current_link_speed"),
        "width": text(folder / "current_link_width"),
        "max_speed": text(folder / "max_link_speed"),
        "max_width": text(folder / "max_link_width"),
    }
    return known(found) or None


def plain(bus: str) -> str:
    """`00000000:18:00.0`, as NVML writes it, the way /sys does."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"
