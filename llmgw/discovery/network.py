"""Network interfaces: what they are, how fast, and what they are part of."""

import os
from pathlib import Path
from typing import Any

from llmgw.discovery import netlink
from llmgw.discovery.found import (
    Found,
    Trouble,
    fields,
    known,
    names,
    number,
    target,
    text,
)


def survey(
    root: Path = Path("/"), links: tuple[netlink.Link, ...] | None = None
) -> Found:
    """*links*: the kernel's answer, where it is not to be asked again."""
    source = "/sys/class/net, netlink"
    top = root / "sys/class/net"
    present = [name for name in names(top) if (top / name / "ifindex").exists()]
    if not present:
        return Found(None, source, "/sys/class/net cannot be read")
    troubles: tuple[Trouble, ...] = ()
    if links is None:
        links, troubles = _asked(root)
    addresses = {link.name: link.addresses for link in links}
    value = [
        _nic(root, name, [str(ip) for ip in addresses.get(name, ())])
        for name in present
    ]
    return Found(value, source, troubles=troubles)


def _asked(root: Path) -> tuple[tuple[netlink.Link, ...], tuple[Trouble, ...]]:
    if root != Path("/"):
        return (), ()  # a captured tree has no kernel to ask
    try:
        return netlink.links(), ()
    except OSError as error:
        trouble = Trouble(
            "addresses_unknown",
            f"addresses of interfaces cannot be listed: {error.strerror}",
            fix="allow AF_NETLINK in the unit's RestrictAddressFamilies",
        )
        return (), (trouble,)


def _nic(root: Path, name: str, addresses: list[str]) -> dict[str, Any]:
    folder = root / "sys/class/net" / name
    speed = number(folder / "speed")  # -1 and an error both mean that it has none
    value = {
        "name": name,
        "kind": _kind(root, name),
        "state": text(folder / "operstate"),
        "carrier": _carrier(folder),
        "mac": text(folder / "address"),
        "mtu": number(folder / "mtu"),
        "speed": speed * 1_000_000 if speed and speed > 0 else None,
        "driver": target(folder / "device/driver"),
        "bus": _bus(folder),
        "numa": node_of(folder / "device"),
        "addresses": addresses,
        "master": target(folder / "master"),
        "members": _members(folder),
        "parent": _vlan(root, name).get("parent"),
        "vlan": _vlan(root, name).get("vlan"),
        "hcas": names(folder / "device/infiniband") or None,
    }
    return known(value)


def _carrier(folder: Path) -> bool | None:
    found = number(folder / "carrier")
    return None if found is None else bool(found)


def _kind(root: Path, name: str) -> str:
    folder = root / "sys/class/net" / name
    said = fields_of(text(folder / "uevent")).get("DEVTYPE")
    for sign in ("bonding", "bridge"):
        if (folder / sign).is_dir():
            return {"bonding": "bond"}.get(sign, sign)
    if "vlan" in _vlan(root, name):
        return "vlan"
    if (folder / "tun_flags").exists():
        return "tun"
    types = {772: "loopback", 32: "infiniband", 801: "wifi", 776: "sit", 768: "ipip"}
    number_of_type = number(folder / "type")
    if number_of_type in types:
        return types[number_of_type]
    if said:
        return said
    return "ethernet" if (folder / "device").exists() else "virtual"


def fields_of(content: str | None) -> dict[str, str]:
    """The lines `NAME=value` of a uevent."""
    pairs = [line.partition("=") for line in (content or "").splitlines()]
    return {name: value for name, equals, value in pairs if equals}


def _vlan(root: Path, name: str) -> dict[str, Any]:
    """Parent and number, from /proc/net/vlan; the parent also from the lower link."""
    found: dict[str, Any] = {}
    said = text(root / "proc/net/vlan" / name)
    if said is not None:
        info = fields(said)
        found["parent"] = info.get("Device")
        words = said.split()
        if "VID:" in words:
            found["vlan"] = int(words[words.index("VID:") + 1])
    uppers = names(root / "sys/class/net" / name)
    lower = [one[6:] for one in uppers if one.startswith("lower_")]
    if lower and "parent" not in found and not _has_members(root, name):
        found["parent"] = lower[0]
    return found


def _has_members(root: Path, name: str) -> bool:
    folder = root / "sys/class/net" / name
    return (folder / "bonding").is_dir() or (folder / "bridge").is_dir()


def _members(folder: Path) -> list[str] | None:
    bonded = text(folder / "bonding/slaves")
    if bonded is not None:
        return bonded.split()
    return names(folder / "brif") or None


def _bus(folder: Path) -> str | None:
    """The PCI function; a virtio NIC's is one level up from its device."""
    try:
        device = (folder / "device").resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    for one in (device, device.parent):
        if one.name.count(":") == 2:
            return one.name
    return None


def node_of(device: Path) -> int | None:
    """The NUMA node; -1 is the kernel's word for none. virtio: the parent knows."""
    for path in (
        device / "numa_node",
        Path(os.path.realpath(device)).parent / "numa_node",
    ):
        found = number(path)
        if found is not None:
            return found if found >= 0 else None
    return None
