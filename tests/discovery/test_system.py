"""Containers and virtual machines by the signs that they leave."""

from pathlib import Path
from typing import Any

import pytest

from llmgw.discovery import system
from tests.discovery import trees

KERNEL = {"proc/sys/kernel/osrelease": "6.1.0"}
VENDOR = "sys/class/dmi/id/sys_vendor"


def said(root: Path, files: dict[str, str]) -> dict[str, Any]:
    return system.survey(trees.write(root, KERNEL | files)).value


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "systemd-nspawn"}, "systemd-nspawn"),
        ({"run/systemd/container": "lxc"}, "lxc"),
        ({"proc/self/cgroup": "1:cpu:/kubepods/besteffort/pod1"}, "kubernetes"),
        ({"run/secrets/kubernetes.io/serviceaccount/token": "x"}, "kubernetes"),
        ({"proc/sys/kernel/osrelease": "5.15-microsoft-standard-WSL2"}, "wsl"),
        ({}, None),
    ],
)
def test_a_container_is_named(
    tmp_path: Path, files: dict[str, str], name: str | None
) -> None:
    assert said(tmp_path, files).get("container") == name


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({VENDOR: "QEMU"}, "qemu"),
        ({VENDOR: "VMware, Inc."}, "vmware"),
        ({VENDOR: "Amazon EC2"}, "ec2"),
        (
            {VENDOR: "Amazon EC2", "sys/class/dmi/id/product_name": "p5.metal-48xl"},
            None,
        ),
        ({"proc/cpuinfo": "flags\t: fpu hypervisor"}, "unnamed"),
        ({VENDOR: "Supermicro"}, None),
    ],
)
def test_a_virtual_machine_is_named(
    tmp_path: Path, files: dict[str, str], name: str | None
) -> None:
    assert said(tmp_path, files).get("vm") == name


def test_the_system_says_what_it_is(tmp_path: Path) -> None:
    release = 'NAME=x\nPRETTY_NAME="Debian 12"\nID=debian\nVERSION_ID="12"'

    assert said(tmp_path, {"etc/os-release": release}) == {
        "kernel": "6.1.0",
        "name": "Debian 12",
        "id": "debian",
        "version": "12",
    }
