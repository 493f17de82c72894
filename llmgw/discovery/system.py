"""The operating system, and whether this is a container or a virtual machine."""

from pathlib import Path

from llmgw.discovery.found import Found, fields, known, text

_MACHINES = {  # how vendors sign the machines they make up
    "QEMU": "qemu",
    "KVM": "kvm",
    "VMware": "vmware",
    "Xen": "xen",
    "innotek": "virtualbox",
    "Microsoft Corporation Virtual": "hyperv",
    "Amazon EC2": "ec2",
    "Google Compute Engine": "gce",
    "OpenStack": "openstack",
    "Parallels": "parallels",
    "Bochs": "bochs",
}
_METAL = ("metal",)  # a cloud's real machines carry the cloud's name all the same


def survey(root: Path = Path("/")) -> Found:
    release = _release(text(root / "etc/os-release"))
    value = {
        "kernel": text(root / "proc/sys/kernel/osrelease"),
        "name": release.get("PRETTY_NAME"),
        "id": release.get("ID"),
        "version": release.get("VERSION_ID"),
        "container": _container(root),
        "vm": _machine(root),
    }
    source = "/proc/sys/kernel, /etc/os-release, /sys/class/dmi"
    if value["kernel"] is None:
        return Found(None, source, "/proc/sys/kernel/osrelease cannot be read")
    return Found(known(value), source)


def _release(content: str | None) -> dict[str, str]:
    pairs = [line.partition("=") for line in (content or "").splitlines()]
    return {name: value.strip("\"'") for name, _, value in pairs}


def _container(root: Path) -> str | None:
    """What runs this container; None on a machine of its own."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    said = text(root / "run/systemd/container")
    if said:
        return said
    cgroups = text(root / "proc/self/cgroup") or ""
    # With cgroup v2 a pod sees itself as the top; what it is given to ask with stays.
    given = root / "run/secrets/kubernetes.io"
    if "kubepods" in cgroups or given.exists():
        return "kubernetes"
    release = text(root / "proc/sys/kernel/osrelease") or ""
    return "wsl" if "microsoft" in release.lower() else None


def _machine(root: Path) -> str | None:
    dmi = root / "sys/class/dmi/id"
    signs = " ".join(
        text(dmi / name) or "" for name in ("sys_vendor", "product_name", "bios_vendor")
    )
    if any(word in signs for word in _METAL):
        return None
    for sign, name in _MACHINES.items():
        if sign in signs:
            return name
    # A small machine monitor shows no DMI; the CPU tells that somebody watches it.
    flags = fields(text(root / "proc/cpuinfo")).get("flags", "").split()
    return "unnamed" if "hypervisor" in flags else None
