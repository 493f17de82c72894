"""NVML without a card: a C library that the real pynvml loads, and machines for it."""

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake.c")
GIB = 1 << 30


def build(folder: Path, version: str = "550.54.15") -> Path:
    """The library under its versioned name, as a driver installs it."""
    library = folder / f"libnvidia-ml.so.{version}"
    name = "-Wl,-soname,libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", name, "-o", str(library)]
    subprocess.run([*command, str(SOURCE)], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to(library.name)
    return folder


def environ(libraries: Path, machine: Path) -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "FAKE_NVML": str(machine),
        "PATH": "/nowhere",  # no nvidia-smi, whoever runs this
    }


def bus(number: int) -> str:
    return f"0000:{0x18 + number:02x}:00.0"


def card(number: int, name: str, total: int | None, **more: object) -> list[str]:
    head = f"gpu {number}"
    lines = [
        f"{head} uuid GPU-{number:08x}",
        f"{head} name {name}",
        f"{head} bus 0000{bus(number)}",
    ]
    if total is not None:
        lines.append(f"{head} memory {total} {GIB // 2} {total - GIB}")
    return lines + [f"{head} {word} {value}" for word, value in more.items()]


def h100x8() -> list[str]:
    """Eight H100 behind NVSwitch, 18 links each."""
    lines = ["driver 550.54.15", "cuda 12040"]
    for number in range(8):
        lines += card(
            number,
            "NVIDIA H100 80GB HBM3",
            80 * GIB,
            compute="9 0",
            minor=number,
            mig=0,
            persistence=1,
            ecc="1 1",
            ecc_corrected=3,
            ecc_uncorrected=0,
            power_limit=700000,
            power_range="200000 700000",
            power=71234,
            sm_clock=1980,
            memory_clock=2619,
            utilization="37 5",
            temperature=41,
            events="0x4",
            remapped="1 2 0 0",
        )
        for link in range(18):
            lines.append(f"gpu {number} link {link} 1 00000000:0{link % 4 + 1}:00.0 2")
        for other in range(number + 1, 8):
            level = 50 if number // 4 != other // 4 else 40
            lines.append(f"topology {number} {other} {level}")
    return lines


def a100_mig() -> list[str]:
    """An A100 in seven slices, and one that is whole."""
    name = "NVIDIA A100-SXM4-40GB"
    lines = ["driver 550.54.15", "cuda 12040"]
    lines += card(0, name, 40 * GIB, compute="8 0", mig=1)
    lines += card(1, name, 40 * GIB, compute="8 0", mig=0)
    for k in range(7):
        lines.append(
            f"gpu 0 slice {k} MIG-{k} {k + 7} {5 * GIB} {4 * GIB} {name} MIG 1g.5gb"
        )
    return lines


def gb10() -> list[str]:
    """Card and CPU share one memory: asking for the card's is Not Supported."""
    return [
        "driver 580.95.05",
        "cuda 13000",
        *card(0, "NVIDIA GB10", None, compute="12 1"),
    ]
