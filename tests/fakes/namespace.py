"""A described machine, built as a network namespace, and a program run in it."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_numbers = itertools.count()


class Namespace:
    """Names are this process's own, so that tests may run side by side."""

    def __init__(self, name: str, etc: Path) -> None:
        self.name = name
        self.far = f"{name}f"
        self._etc = etc

    def ip(self, *lines: str) -> None:
        _run(["ip", "-n", self.name, "-batch", "-"], "\n".join(lines))

    def python(self, module: str, given: object) -> Any:
        """Run one of our modules in there: JSON in, JSON out."""
        mounts = [
            f"mount --bind {self._etc / name} /etc/{name}"
            for name in ("hosts", "resolv.conf", "nsswitch.conf")
        ]
        script = " && ".join([*mounts, f"exec {sys.executable} -m {module}"])
        command = ["ip", "netns", "exec", self.name, "sh", "-c", script]
        return json.loads(_run(command, json.dumps(given)))


@contextmanager
def namespace(description: dict[str, Any], folder: Path) -> Generator[Namespace]:
    """Build the machine; skips the test where that is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2: apt-get install iproute2")
    _etc(description, folder)
    built = Namespace(f"llmgw{os.getpid()}n{next(_numbers)}", folder)
    try:
        _run(["ip", "netns", "add", built.name])
    except RuntimeError as error:
        pytest.skip(f"no network namespace can be made; run as root: {error}")
    try:
        _run(["ip", "netns", "add", built.far])
        _build(description, built)
        yield built
    finally:
        for name in (built.name, built.far):
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, check=False
            )


def _run(command: list[str], given: str = "") -> str:
    answer = subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{command}: {answer.stderr}")
    return answer.stdout


def _etc(description: dict[str, Any], folder: Path) -> None:
    (folder / "hosts").write_text("\n".join(description["hosts"]) + "\n")
    wait = description.get("resolver_timeout", 1)
    (folder / "resolv.conf").write_text(
        f"nameserver 127.0.0.1\noptions timeout:{wait} attempts:1\n"
    )
    (folder / "nsswitch.conf").write_text("hosts: files dns\n")


def _build(description: dict[str, Any], built: Namespace) -> None:
    sysctl = {
        "net.ipv6.conf.all.accept_dad": "0",
        "net.ipv6.conf.default.accept_dad": "0",
        "net.ipv6.conf.default.addr_gen_mode": "1",
        **description["sysctl"],
    }
    settings = [f"{key}={value}" for key, value in sysctl.items()]
    _run(["ip", "netns", "exec", built.name, "sysctl", "-q", "-w", *settings])
    if description["lo"] == "up":
        built.ip("link set lo up")
    own = description.get("lo_addresses", ())
    built.ip(*(f"address add {text} dev lo" for text in own))
    far: list[str] = []
    for number, interface in enumerate(description["interfaces"]):
        built.ip(*_interface(interface, built, f"far{number}"))
        if interface["kind"] == "veth":
            far.append(f"link set far{number} up")
    _run(["ip", "-n", built.far, "-batch", "-"], "\n".join(far))
    for text in description["routes"]:
        family = ["-4"] if text.startswith("-4 ") else []
        words = text.removeprefix("-4 ").split()
        _run(["ip", *family, "-n", built.name, "route", "add", *words])
    built.ip(*(f"rule add {text}" for text in description["rules"]))
    built.ip(*description.get("then", ()))


def _interface(interface: dict[str, Any], built: Namespace, far: str) -> Iterator[str]:
    name, kind = interface["name"], interface["kind"]
    if kind == "veth":
        yield f"link add {name} type veth peer name {far} netns {built.far}"
    elif kind == "tun":
        yield f"tuntap add {name} mode tun"
    elif kind == "macvlan":
        yield f"link add link {interface['parent']} name {name} type macvlan"
    else:
        yield f"link add {name} type {kind}"
    if "master" in interface:
        yield f"link set {name} master {interface['master']}"
    if interface.get("state") != "down":
        yield f"link set {name} up"
    for address in interface["addresses"]:
        is_six = ":" in address.split()[0]
        yield f"address add {address} dev {name}" + (" nodad" if is_six else "")
