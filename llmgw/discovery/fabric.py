"""InfiniBand and RoCE adapters, and which of the operator's fabrics they are on."""

from pathlib import Path
from typing import Any

from llmgw.config.keys import Fabric
from llmgw.discovery import pci
from llmgw.discovery.found import Found, Trouble, known, names, number, target, text

TOP = "sys/class/infiniband"


def survey(fabrics: tuple[Fabric, ...] = (), root: Path = Path("/")) -> Found:
    """Nothing is inferred: two fabrics with the same subnet prefix look like one."""
    top = root / TOP
    present = names(top)
    value = [_hca(root, name, fabrics) for name in present]
    troubles = [
        Trouble(
            "hca_missing",
            f"fabric {fabric.name} names {hca}, and there is no such adapter",
            "fabrics",
            f"there is {', '.join(present) or 'none'}; name those, or load its driver",
        )
        for fabric in fabrics
        for hca in fabric.hcas
        if hca not in present
    ]
    for fabric in fabrics:
        for hca in (one for one in value if one["name"] in fabric.hcas):
            troubles += _unusable(fabric, hca)
    return Found(value, "/sys/class/infiniband", troubles=tuple(troubles))


def _hca(root: Path, name: str, fabrics: tuple[Fabric, ...]) -> dict[str, Any]:
    folder = root / TOP / name
    ports = names(folder / "ports")
    node = number(folder / "device/numa_node")
    node = None if node is None or node < 0 else node
    value = {
        "name": name,
        "type": text(folder / "hca_type"),
        "board": text(folder / "board_id"),
        "firmware": text(folder / "fw_ver"),
        "driver": target(folder / "device/driver"),
        "numa": node,
        "bus": _bus(folder),
        "gpus": _near(root, folder, node) or None,
        "ports": [_port(folder, name, int(port), fabrics) for port in ports],
    }
    return known(value)


def _port(
    folder: Path, hca: str, port: int, fabrics: tuple[Fabric, ...]
) -> dict[str, Any]:
    here = folder / "ports" / str(port)
    state = (text(here / "state") or "").partition(": ")[2].lower()
    value = {
        "port": port,
        "state": state or None,
        "physical": (text(here / "phys_state") or "").partition(": ")[2] or None,
        "link_layer": text(here / "link_layer"),
        "rate": _rate(text(here / "rate")),
        "lid": number(here / "lid") or None,
        "gids": _gids(here) or None,
        "netdev": _netdev(folder, here, port),
        "fabrics": [
            fabric.name
            for fabric in fabrics
            if hca in fabric.hcas and (fabric.ports is None or port in fabric.ports)
        ],
    }
    return known(value)


def _rate(said: str | None) -> int | None:
    """`400 Gb/sec (4X NDR)` in bits a second."""
    words = (said or "").split()
    try:
        return int(float(words[0]) * 1e9)
    except (IndexError, ValueError):
        return None


def _gids(port: Path) -> list[dict[str, Any]]:
    """Those that are set; RoCE has several, and NCCL_IB_GID_INDEX chooses one."""
    found: list[dict[str, Any]] = []
    for index in sorted(names(port / "gids"), key=lambda name: (len(name), name)):
        gid = text(port / "gids" / index)
        if gid and gid.strip("0:"):
            kind = text(port / "gid_attrs/types" / index)
            found.append(known({"index": int(index), "gid": gid, "type": kind}))
    return found


def _netdev(folder: Path, port: Path, number_of_port: int) -> str | None:
    for index in names(port / "gid_attrs/ndevs"):
        said = text(port / "gid_attrs/ndevs" / index)
        if said:
            return said
    beside = names(folder / "device/net")
    for name in beside:
        # Of two ports of one function each NIC says which one it is; from 0.
        if number(folder / "device/net" / name / "dev_port") == number_of_port - 1:
            return name
    return beside[0] if len(beside) == 1 else text(folder / "parent")


def _bus(folder: Path) -> str | None:
    """None where it is made of a NIC by software, and hangs on no bus."""
    found = target(folder / "device")
    return found if found and found.count(":") == 2 else None


def _near(root: Path, folder: Path, node: int | None) -> list[dict[str, Any]]:
    """How far each card is: the way through the PCI tree, and the distance of the NUMA
    nodes as the kernel counts it (10 is the same one).
    """
    bus = _bus(folder)
    said = text(root / f"sys/devices/system/node/node{node}/distance") or ""
    distances = [int(word) for word in said.split() if word.isdigit()]
    found: list[dict[str, Any]] = []
    for card in pci.cards(root):
        numa = card.get("numa", len(distances))
        near = known(
            {
                "path": pci.path(root, bus, card["bus"]) if bus else None,
                "numa_distance": distances[numa] if numa < len(distances) else None,
            }
        )
        if near:
            found.append({"bus": card["bus"], **near})
    return found


def _unusable(fabric: Fabric, hca: dict[str, Any]) -> list[Trouble]:
    troubles: list[Trouble] = []
    for port in hca["ports"]:
        wanted = fabric.ports is None or port["port"] in fabric.ports
        if wanted and port.get("state") != "active":
            troubles.append(
                Trouble(
                    "hca_port_down",
                    f"port {port['port']} is {port.get('state', 'unknown')}, and "
                    f"fabric {fabric.name} counts on it",
                    hca["name"],
                    "look at its cable and, for InfiniBand, the subnet manager",
                )
            )
    have = {port["port"] for port in hca["ports"]}
    troubles += [
        Trouble("hca_missing", f"fabric {fabric.name} names port {port}", hca["name"])
        for port in fabric.ports or ()
        if port not in have
    ]
    return troubles
