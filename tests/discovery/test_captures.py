"""Every captured machine through every probe that only reads the kernel's files."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.config.keys import Fabric
from llmgw.discovery import (
    cgroup,
    cpu,
    fabric,
    gpu,
    load,
    memory,
    network,
    numa,
    system,
)
from llmgw.discovery.found import numbers, ranges
from tests import captures
from tests.captures import unpack
from tests.discovery import trees

GIB = 1 << 30


def nics(root: Path) -> dict[str, dict[str, Any]]:
    return {nic["name"]: nic for nic in network.survey(root).value}


@pytest.mark.parametrize("name", captures.names())
def test_every_probe_has_an_answer_that_the_wire_takes(
    name: str, tmp_path: Path
) -> None:
    root = unpack(name, tmp_path)
    for survey in (cpu.survey, memory.survey, numa.survey, network.survey):
        found = survey(root)
        assert found.value is not None or found.reason
        assert msgspec.json.encode(found.value)
    for found in (
        system.survey(root),
        fabric.survey(root=root),
        gpu.combined("PCI", {}, root),
    ):
        assert found.value is not None
        assert msgspec.json.encode(found.value)


@pytest.mark.parametrize(
    "survey", [cpu.survey, memory.survey, numa.survey, network.survey, system.survey]
)
def test_an_empty_machine_is_unknown_and_not_zero(survey: Any, tmp_path: Path) -> None:
    found = survey(tmp_path)

    assert found.value is None
    assert found.reason


def test_every_capture_says_whether_a_machine_was_read(tmp_path: Path) -> None:
    said = {name: captures.origin(name) for name in captures.names()}

    assert len(said) >= 6
    assert set(said.values()) == {"read", "synthetic"}


def test_two_sockets_with_threads(tmp_path: Path) -> None:
    root = unpack("h100-infiniband", tmp_path)

    value = cpu.survey(root).value

    assert (value["online"], value["cores"], value["sockets"]) == (224, 112, 2)
    assert value["smt"] is True
    assert {"amx_tile", "avx512f", "avx2"} <= set(value["features"])
    assert value["now"] == {"pressure": {"some_avg10": 0.015}}
    assert len(cpu.nodes(root)[1]) == 112
    assert memory.survey(root).value["huge_pages"] == [{"size": GIB, "total": 16}]
    nodes = numa.survey(root).value
    assert [node["distances"] for node in nodes] == [[10, 21], [21, 10]]
    assert nodes[0]["memory"] == 1056768000 * 1024


def test_what_this_process_may_use_counts(tmp_path: Path) -> None:
    """T86: eight of 64 CPUs are allowed, four at a time; and 16 of 503 GiB."""
    root = unpack("container-limited", tmp_path)

    value = cpu.survey(root).value

    assert (value["online"], value["allowed"], value["quota"]) == (64, "0-7", 4.0)
    assert value["usable"] == 4
    said = memory.survey(root).value
    assert (said["usable"], said["limit"]) == (16 * GIB, 16 * GIB)
    assert said["total"] == 527800000 * 1024
    assert system.survey(root).value["container"] == "docker"


def test_the_old_cgroups_and_a_virtual_machine(tmp_path: Path) -> None:
    root = unpack("vm-cgroup1", tmp_path)

    assert cgroup.limits(root) == cgroup.Limits(None, 4 * GIB)
    assert system.survey(root).value["vm"] == "qemu"
    nic = nics(root)["ens3"]
    assert "speed" not in nic
    assert "numa" not in nic
    assert (nic["driver"], nic["bus"]) == ("virtio_net", "0000:00:03.0")


def test_fast_and_slow_cores(tmp_path: Path) -> None:
    """T86: a hybrid CPU says which are which; its display chip is no GPU to use."""
    root = unpack("workstation-hybrid", tmp_path)

    assert cpu.survey(root).value["kinds"] == {
        "performance": "0-7",
        "efficiency": "8-19",
    }
    found = gpu.combined("NVML", {"gpus": []}, root)
    assert [t.where for t in found.troubles] == ["0000:01:00.0"]


def test_bonds_and_vlans_name_what_they_are_made_of(tmp_path: Path) -> None:
    """T31: `bond0` and `bond0.2093` are two interfaces."""
    found = nics(unpack("h100-infiniband", tmp_path))

    assert found["bond0"]["kind"] == "bond"
    assert found["bond0"]["members"] == ["ens6f0", "ens6f1"]
    assert "parent" not in found["bond0"]
    assert found["bond0"]["speed"] == 200_000_000_000
    vlan = found["bond0.2093"]
    assert (vlan["kind"], vlan["parent"], vlan["vlan"]) == ("vlan", "bond0", 2093)
    assert found["ens6f0"]["master"] == "bond0"
    assert (found["ens6f0"]["driver"], found["ens6f0"]["numa"]) == ("mlx5_core", 0)
    assert found["lo"]["kind"] == "loopback"


def test_a_bridge_and_its_ports_name_each_other(tmp_path: Path) -> None:
    top = "sys/class/net"
    trees.write(
        tmp_path,
        {
            f"{top}/br0/ifindex": "2",
            f"{top}/br0/bridge/stp_state": "0",
            f"{top}/br0/brif/eth0/port_no": "0x1",
            f"{top}/br0/lower_eth0/ifindex": "3",
            f"{top}/eth0/ifindex": "3",
        },
    )
    (tmp_path / top / "eth0/master").symlink_to("../br0")

    found = nics(tmp_path)

    assert (found["br0"]["kind"], found["br0"]["members"]) == ("bridge", ["eth0"])
    assert "parent" not in found["br0"]
    assert found["eth0"]["master"] == "br0"


def test_adapters_with_the_operators_fabrics(tmp_path: Path) -> None:
    root = unpack("h100-infiniband", tmp_path)
    fabrics = (
        Fabric(name="east", hcas=("mlx5_0", "mlx5_5"), ports=(1,)),
        Fabric(name="west", hcas=("mlx5_9",)),
    )

    found = fabric.survey(fabrics, root)

    hcas = {hca["name"]: hca for hca in found.value}
    port = hcas["mlx5_0"]["ports"][0]
    assert port["state"] == "active"
    assert (port["rate"], port["lid"]) == (400_000_000_000, 26)
    assert port["link_layer"] == "InfiniBand"
    assert port["fabrics"] == ["east"]
    assert hcas["mlx5_1"]["ports"][0]["fabrics"] == []
    near = {card.pop("bus"): card for card in hcas["mlx5_0"]["gpus"]}
    assert near["0000:1b:00.0"] == {"path": "PXB", "numa_distance": 10}
    assert near["0000:43:00.0"] == {"path": "NODE", "numa_distance": 10}
    assert near["0000:df:00.0"] == {"path": "SYS", "numa_distance": 21}
    assert [(t.code, t.where) for t in found.troubles] == [
        ("hca_missing", "fabrics"),
        ("hca_port_down", "mlx5_5"),
    ]


def test_roce_names_its_interface(tmp_path: Path) -> None:
    root = unpack("grace-roce", tmp_path)

    (hca,) = fabric.survey(root=root).value

    (port,) = hca["ports"]
    assert port["netdev"] == "enp3s0np0"
    assert "lid" not in port
    assert port["gids"] == [
        {
            "index": 0,
            "gid": "0000:0000:0000:0000:0000:ffff:0a00:0005",
            "type": "RoCE v2",
        }
    ]
    assert nics(root)["enp3s0np0"]["hcas"] == ["mlx5_0"]
    assert cpu.survey(root).value["arch"] == "aarch64"
    assert "sve2" in cpu.survey(root).value["features"]


def test_accelerators_of_amd(tmp_path: Path) -> None:
    cards = gpu.combined("PCI", {}, unpack("mi300x", tmp_path)).value["gpus"]

    assert len(cards) == 8
    assert {card["memory"] for card in cards} == {206141652992}
    assert len({card["uuid"] for card in cards}) == 8
    assert {card["xgmi"] for card in cards} == {"74565"}


def test_load_is_the_share_that_worked(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 10 kB\nMemAvailable: 4 kB\n")
    first = load.sample(tmp_path)
    (tmp_path / "proc/stat").write_text("cpu  150 0 100 700 150 0 0 0 0 0\n")
    later = load.sample(tmp_path)

    assert load.share(first, later) == 0.5
    assert later.memory_used == 6 * 1024
    assert load.share(first, first) is None
    assert load.share(load.Sample(), later) is None


def test_ranges_and_numbers_are_the_same() -> None:
    assert numbers("0-3,8,x,10-9") == [0, 1, 2, 3, 8]
    assert ranges([8, 1, 2, 0, 3]) == "0-3,8"
    assert ranges([]) == ""
