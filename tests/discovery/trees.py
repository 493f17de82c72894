"""Small /sys trees, written where a test wants them."""

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def gpu(root: Path, bus: str, vendor: str = "0x10de", numa: int = 0) -> None:
    folder = f"sys/bus/pci/devices/{bus}"
    write(
        root,
        {
            f"{folder}/class": "0x030200",
            f"{folder}/vendor": vendor,
            f"{folder}/device": "0x2330",
            f"{folder}/numa_node": str(numa),
        },
    )


def hang(root: Path, way: str) -> str:
    """A PCI function where *way* says, under /sys/devices; its bus address."""
    bus = way.rpartition("/")[2]
    (root / "sys/devices" / way).mkdir(parents=True)
    link = root / "sys/bus/pci/devices" / bus
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{way}")
    return bus
