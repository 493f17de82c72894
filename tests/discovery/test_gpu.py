"""GPUs, asked through the real pynvml of a library that pretends to have them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.discovery import gpu, xid
from llmgw.discovery.child import Child, Hung
from llmgw.discovery.found import Found
from tests.discovery import trees
from tests.fakes import nvml
from tests.fakes.nvml import GIB, bus

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs a C compiler: apt-get install gcc"
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


Machine = Callable[[list[str]], Child]


@pytest.fixture
def machine(libraries: Path, tmp_path: Path) -> Machine:
    def made(lines: list[str]) -> Child:
        file = tmp_path / "machine"
        file.write_text("\n".join(lines) + "\n")
        environ = nvml.environ(libraries, file)
        return Child("llmgw.discovery.gpu", "survey", environ)

    return made


def asked(child: Child, root: Path, limit: float = 20) -> Found:
    return child.ask({"root": str(root)}, limit)


def test_eight_cards_behind_switches(machine: Machine, tmp_path: Path) -> None:
    for number in range(8):
        trees.gpu(tmp_path, bus(number), numa=number // 4)

    found = asked(machine(nvml.h100x8()), tmp_path)

    assert (found.source, found.reason, found.troubles) == ("NVML", "", ())
    assert (found.value["driver"], found.value["cuda"]) == ("550.54.15", "12.4")
    cards = found.value["gpus"]
    assert [card["bus"] for card in cards] == [bus(number) for number in range(8)]
    assert [card["numa"] for card in cards] == [0] * 4 + [1] * 4
    first = cards[0]
    assert first["memory"] == 80 * GIB
    assert first["memory_reserved"] == GIB // 2
    assert first["compute"] == "9.0"
    assert first["persistence"] is True
    assert first["ecc"] == {"enabled": True, "now": {"corrected": 3}, "uncorrected": 0}
    assert first["retired_pages"] == {
        "remapped_rows": 3,
        "pending": False,
        "failed": False,
    }
    assert first["limits"]["power_w"] == 700
    assert first["limits"]["sm_mhz"] == 1980
    assert first["now"] == {
        "utilization": 0.37,
        "temperature_c": 41,
        "power_w": 71.234,
        "throttle": ["sw_power_cap"],
        "memory_free": 79 * GIB,
    }
    assert len(first["nvlinks"]) == 18
    assert first["nvlinks"][0]["kind"] == "switch"
    topology = found.value["topology"]
    assert len(topology) == 28
    assert {pair["path"] for pair in topology} == {"NVLink x18"}
    assert {pair["pci"] for pair in topology} == {"NODE", "SYS"}


def test_what_an_older_card_says_of_its_memory(
    machine: Machine, tmp_path: Path
) -> None:
    """It retires pages where a newer one remaps rows, and its driver is of its age."""
    lines = nvml.card(0, "V100", 32 * GIB, retired="3 2", throttle="0x40")

    (card,) = asked(machine(lines), tmp_path).value["gpus"]

    assert card["retired_pages"] == {"pages": 5}
    assert card["now"]["throttle"] == ["hw_thermal"]


@pytest.mark.parametrize(
    ("remapped", "severity", "fix"),
    [("1 0 1 0", "warning", "reset"), ("1 0 0 1", "error", "replace")],
)
def test_memory_that_wears_out_is_told(
    machine: Machine, tmp_path: Path, remapped: str, severity: str, fix: str
) -> None:
    found = asked(machine(nvml.card(0, "A", GIB, remapped=remapped)), tmp_path)

    (trouble,) = found.troubles
    assert (trouble.code, trouble.severity) == ("gpu_memory", severity)
    assert trouble.where == bus(0)
    assert fix in trouble.fix


@pytest.mark.parametrize(
    ("mode", "word"),
    [(0, None), (1, "passthrough"), (2, "vgpu"), (3, "host_vgpu"), (4, "host_vsga")],
)
def test_a_card_that_is_virtual_says_so(
    machine: Machine, tmp_path: Path, mode: int, word: str | None
) -> None:
    lines = nvml.card(0, "GRID A100-10C", 10 * GIB, virtual=mode)

    (card,) = asked(machine(lines), tmp_path).value["gpus"]

    assert card.get("vgpu") == word


def test_a_link_that_is_down_is_not_counted(machine: Machine, tmp_path: Path) -> None:
    lines = [*nvml.card(0, "A", GIB), *nvml.card(1, "B", GIB), "topology 0 1 20"]
    lines += [f"gpu 0 link 0 1 0000{bus(1)} 0", f"gpu 0 link 1 0 0000{bus(1)} 0"]

    found = asked(machine(lines), tmp_path)

    (pair,) = found.value["topology"]
    assert (pair["path"], pair["pci"]) == ("NVLink x1", "PXB")


def test_seven_slices_are_seven_devices(machine: Machine, tmp_path: Path) -> None:
    """T82: each with its own memory and UUID; the card they are of is not offered."""
    found = asked(machine(nvml.a100_mig()), tmp_path)

    slices = [card for card in found.value["gpus"] if "parent" in card]
    assert [card["uuid"] for card in slices] == [f"MIG-{k}" for k in range(7)]
    assert {card["memory"] for card in slices} == {5 * GIB}
    assert {card["parent"] for card in slices} == {"GPU-00000000"}
    assert slices[0]["name"].endswith("MIG 1g.5gb")
    whole = [card for card in found.value["gpus"] if "parent" not in card]
    assert [card["uuid"] for card in whole] == ["GPU-00000001"]
    assert [card["uuid"] for card in found.value["parents"]] == ["GPU-00000000"]


def test_a_card_without_memory_of_its_own(machine: Machine, tmp_path: Path) -> None:
    """T83: GB10. The system's memory is the card's, less what the system needs."""
    meminfo = {"proc/meminfo": "MemTotal: 125829120 kB\nMemAvailable: 104857600 kB"}
    trees.write(tmp_path, meminfo)

    found = asked(machine(nvml.gb10()), tmp_path)

    (card,) = found.value["gpus"]
    assert card["unified"] is True
    assert card["memory"] == 120 * GIB - gpu.RESERVE
    assert card["now"]["memory_free"] == 100 * GIB - gpu.RESERVE


def test_a_driver_of_another_version(machine: Machine, tmp_path: Path) -> None:
    """T81: a fact with both versions and what to do, not a node without GPUs."""
    trees.gpu(tmp_path, bus(0))
    trees.write(tmp_path, {"sys/module/nvidia/version": "535.183.01"})

    found = asked(machine(["init 18"]), tmp_path)

    assert found.value["driver_mismatch"] == {
        "library": "550.54.15",
        "module": "535.183.01",
    }
    assert found.value["gpus"] == []
    assert [card["bus"] for card in found.value["missing"]] == [bus(0)]
    (trouble,) = found.troubles
    assert (trouble.code, trouble.severity) == ("driver_mismatch", "error")
    assert "reboot" in trouble.fix


def test_a_card_that_only_pci_shows(machine: Machine, tmp_path: Path) -> None:
    """T85: eight on the bus, seven answer: the eighth is named by its place."""
    for number in range(8):
        trees.gpu(tmp_path, bus(number))
    lines = [line for line in nvml.h100x8() if not line.startswith("gpu 7")]

    found = asked(machine(lines), tmp_path)

    assert len(found.value["gpus"]) == 7
    assert [(t.code, t.where) for t in found.troubles] == [("gpu_missing", bus(7))]


def test_a_lost_card_leaves_the_others(machine: Machine, tmp_path: Path) -> None:
    found = asked(machine([*nvml.h100x8(), "gpu 3 lost 15"]), tmp_path)

    assert [card["index"] for card in found.value["gpus"]] == [0, 1, 2, 4, 5, 6, 7]
    (trouble,) = found.troubles
    assert (trouble.code, trouble.where) == ("gpu_lost", bus(3))
    assert "lost" in trouble.what


@pytest.mark.parametrize(
    "call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"]
)
def test_a_call_that_never_returns(machine: Machine, tmp_path: Path, call: str) -> None:
    """T84: the child is ended at its deadline, whichever call it is."""
    child = machine([*nvml.h100x8(), f"hang {call}"])

    with pytest.raises(Hung):
        asked(child, tmp_path, 1.0)


def test_without_a_library_there_is_a_reason(tmp_path: Path) -> None:
    trees.gpu(tmp_path, bus(0))
    environ = nvml.environ(tmp_path, tmp_path / "none")
    child = Child("llmgw.discovery.gpu", "survey", environ)

    found = asked(child, tmp_path)

    assert found.source == "PCI"
    assert found.value["gpus"] == []
    (trouble,) = found.troubles
    assert trouble.code == "gpu_missing"
    assert "NVML:" in trouble.what
    assert "nvidia-smi" in trouble.what


OLD = """#!/bin/sh
case "$*" in
*mig.mode*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2;;
*query*) echo "0, GPU-aa, NVIDIA L4, 00000000:18:00.0, 23034, 22000, 8.9, 550.1, 12, 40"
  echo "1, GPU-bb, NVIDIA L4, 00000000:19:00.0, [N/A], [N/A], 8.9, 550.1, [N/A], 41";;
*) exit 1;;
esac
"""
NEW = """#!/bin/sh
base="GPU-aa, NVIDIA A100, 00000000:18:00.0, 40960, 40000, 8.0, 550.1, [N/A], 40"
case "$*" in
*query*) echo "0, $base, 600, Enabled, Enabled, Enabled, 0, 400.00, 400.00, 61.50, \\
1410, 1215";;
-L) echo "GPU 0: NVIDIA A100 (UUID: GPU-aa)"
  echo "  MIG 3g.20gb     Device  0: (UUID: MIG-1)"
  echo "  MIG 2g.10gb     Device  1: (UUID: MIG-2)";;
--version) echo "CUDA Version        : 12.4";;
esac
"""


def by_program(folder: Path, script: str) -> Found:
    program = folder / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)
    environ = nvml.environ(folder, folder) | {"PATH": f"{folder}:/usr/bin:/bin"}
    return asked(Child("llmgw.discovery.gpu", "survey", environ), folder)


def test_nvidia_smi_where_there_is_no_library(tmp_path: Path) -> None:
    """An old one, that refuses to be asked what it does not know."""
    found = by_program(tmp_path, OLD)

    assert (found.source, found.value["driver"]) == ("nvidia-smi", "550.1")
    one, other = found.value["gpus"]
    assert (one["memory"], one["now"]["utilization"]) == (23034 << 20, 0.12)
    assert other["unified"] is True


def test_nvidia_smi_says_slices_too(tmp_path: Path) -> None:
    """T82: without a library either the whole card is not offered in their stead."""
    found = by_program(tmp_path, NEW)

    assert found.value["cuda"] == "12.4"
    assert found.value["gpus"] == [
        {
            "uuid": f"MIG-{number}",
            "name": name,
            "bus": bus(0),
            "vendor": "nvidia",
            "compute": "8.0",
            "parent": "GPU-aa",
            "now": {},
        }
        for number, name in ((1, "MIG 3g.20gb"), (2, "MIG 2g.10gb"))
    ]
    (card,) = found.value["parents"]
    assert card["memory_reserved"] == 600 << 20
    assert card["persistence"] is True
    assert card["ecc"] == {"enabled": True, "uncorrected": 0}
    assert card["limits"] == {
        "power_w": 400,
        "power_max_w": 400,
        "sm_mhz": 1410,
        "memory_mhz": 1215,
    }
    assert card["now"]["power_w"] == 61.5


def test_no_driver_is_loaded_where_nothing_needs_one(tmp_path: Path) -> None:
    assert not gpu.is_asked(tmp_path)
    trees.gpu(tmp_path, bus(0))
    assert gpu.is_asked(tmp_path)


def test_a_card_of_amd_is_seen(tmp_path: Path) -> None:
    trees.gpu(tmp_path, bus(0), vendor="0x1002", numa=1)
    folder = f"sys/bus/pci/devices/{bus(0)}"
    node = "sys/class/kfd/kfd/topology/nodes/2"
    trees.write(
        tmp_path,
        {
            f"{folder}/mem_info_vram_total": str(192 * GIB),
            f"{folder}/mem_info_vram_used": str(2 * GIB),
            f"{folder}/gpu_busy_percent": "50",
            f"{folder}/unique_id": "0x1234abcd",
            f"{folder}/product_name": "AMD Instinct MI300X",
            f"{node}/properties": "location_id 6144\ngfx_target_version 90402",
        },
    )
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    (tmp_path / folder / "driver").symlink_to("../../drivers/amdgpu")

    (card,) = gpu.combined("PCI", {}, tmp_path).value["gpus"]

    assert card["name"] == "AMD Instinct MI300X"
    assert (card["vendor"], card["numa"]) == ("amd", 1)
    assert card["memory"] == 192 * GIB
    assert card["compute"] == "gfx942"
    assert card["now"] == {"memory_free": 190 * GIB, "utilization": 0.5}


def test_xids_of_the_kernels_log(tmp_path: Path) -> None:
    line = "4,1,1,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."
    trees.write(tmp_path, {"dev/kmsg": f"{line}\n6,2,2,-;other\n{line}"})

    assert xid.seen(tmp_path) == [{"bus": bus(0), "xid": 79, "count": 2}]
    found: dict[str, Any] = gpu.combined("PCI", {}, tmp_path)._asdict()
    assert [one.code for one in found["troubles"]] == ["gpu_xid"]
