"""Graphics cards and accelerators on the PCI bus, and how near two functions are."""

import os
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
        found.append(
            known(
                {
                    "bus": bus,
                    "vendor": vendor,
                    "device": text(top / bus / "device"),
                    "driver": target(top / bus / "driver"),
                    "numa": _node(top / bus),
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


def _node(folder: Path) -> int | None:
    found = number(folder / "numa_node")
    return None if found is None or found < 0 else found


def path(root: Path, one: str, other: str) -> str | None:
    """What lies between two functions, in the words of `nvidia-smi topo`: PIX one
    switch, PXB several, PHB the host bridge, NODE several of one NUMA node, SYS the
    link between sockets. None: /sys does not show where they hang.

    One rule for cards and adapters, so that their distances compare.
    """
    here, there = _way(root, one), _way(root, other)
    if not here or not there:
        return None
    if here[0] != there[0]:
        top = root / "sys/bus/pci/devices"
        same = _node(top / one) == _node(top / other)
        return "NODE" if same else "SYS"
    shared = next(
        (at for at, (a, b) in enumerate(zip(here, there, strict=False)) if a != b),
        min(len(here), len(there)),
    )
    if shared == 1:
        return "PHB"
    # Below the bridge that they share; each switch has a port above and one below.
    bridges = max(len(here), len(there)) - shared - 1
    return "PIX" if bridges <= 1 else "PXB"


def _way(root: Path, bus: str) -> list[str]:
    """From the host bridge down to the function, as /sys nests them."""
    real = os.path.realpath(root / "sys/bus/pci/devices" / bus)
    parts = Path(real).parts
    bridges = [
        at for at, part in enumerate(parts) if part.startswith("pci") and ":" in part
    ]
    return list(parts[bridges[-1] :]) if bridges else []


def plain(bus: str) -> str:
    """`00000000:18:00.0`, as NVML writes it, the way /sys does."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"
