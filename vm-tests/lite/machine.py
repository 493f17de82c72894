"""One guest: a systemd-nspawn container that boots, as the NixOS driver shows it."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import files
from commands import Commands, Failed, host, retry

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Machine(Commands):
    def __init__(
        self, name: str, about: Mapping[str, Any], run: Path, base: Path, source: Path
    ) -> None:
        super().__init__(name)
        self._about = about
        self._source = source
        self._dir = run / name
        self._root = self._dir / "root"
        self._links: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._init: int | None = None
        inode = Path("/proc/self/ns/net").stat().st_ino
        self._cgroup = Path(f"/sys/fs/cgroup/llmgw-{inode}-{name}")
        for part in ("upper", "work", "root"):
            (self._dir / part).mkdir(parents=True)
        layers = f"lowerdir={base},upperdir={self._dir}/upper,workdir={self._dir}/work"
        host("mount", "-t", "overlay", "overlay", "-o", layers, str(self._root))
        files.place(self._root, name, about)
        self._make_network()

    def _make_network(self) -> None:
        host("ip", "netns", "add", self.name)
        host("ip", "-n", self.name, "link", "set", "lo", "up")
        for nic in self._about["interfaces"]:
            link = f"n{self._about['number']}v{nic['vlan']}"
            peer = ("peer", "name", nic["name"], "netns", self.name)
            host("ip", "link", "add", link, "type", "veth", *peer)
            host("ip", "link", "set", link, "master", bridge(nic["vlan"]), "up")
            for address in nic["addresses"]:
                add = ("addr", "add", address, "dev", nic["name"])
                host(
                    "ip", "-n", self.name, *add, *(["nodad"] if ":" in address else [])
                )
            host("ip", "-n", self.name, "link", "set", nic["name"], "up")
            self._links.append(link)

    # power

    def is_on(self) -> bool:
        return self._process is not None

    def start(self, allow_reboot: bool = False) -> None:
        if self._process:
            return
        self._set_links("up")
        self._cgroup.mkdir(exist_ok=True)
        # Started inside its network namespace: else /sys/class/net is the host's.
        command = [
            *("nsenter", f"--net=/run/netns/{self.name}"),
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit"),
            *(f"--directory={self._root}", f"--machine={self.name}"),
            *(f"--network-namespace-path=/run/netns/{self.name}", "--console=pipe"),
            *("--link-journal=no", "--resolv-conf=off", "--timezone=off"),
            f"--bind-ro={self._source}:/opt/llmgw/source",
            *("--boot", "systemd.unit=multi-user.target"),
        ]

        def join() -> None:
            (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))

        with (self._dir / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                preexec_fn=join,  # noqa: PLW1509 -- no threads here
            )
        self._init = None

    def connect(self) -> int:
        """The guest's first process, once its systemd answers."""
        self.start()
        process = self._process
        assert process
        if self._init is None:
            retry(lambda _: self._booted(process), 60)
        assert self._init
        return self._init

    def _booted(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            said = (self._dir / "console.log").read_text(errors="replace")
            raise Failed(f"{self.name} did not boot:\n{said[-2000:]}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for child in children.read_text().split():
            asked = host(
                *_inside(int(child)), "systemctl", "is-system-running", check=False
            )
            if asked.stdout.strip() in ("starting", "running", "degraded"):
                self._init = int(child)
                return True
        return False

    def wait_for_shutdown(self) -> None:
        if self._process:
            self._process.wait()
            self._process = self._init = None
            self._set_links("down")  # a machine without power has no link

    def crash(self) -> None:
        if self._process:
            self.log("power cut")
            # not nspawn itself: the guest would run on without it
            os.kill(self.connect(), signal.SIGKILL)
            self.wait_for_shutdown()

    def release(self) -> None:
        """The end of the test: everything of this guest goes."""
        with suppress(Failed):
            self.crash()
        with suppress(OSError):
            for folder, _, _ in os.walk(self._cgroup, topdown=False):
                Path(folder).rmdir()

    # network: the first interface, as the driver does

    def _set_links(self, state: str) -> None:
        for link in self._links:
            host("ip", "link", "set", link, state)

    def block(self) -> None:
        host("ip", "link", "set", self._links[0], "down")

    def unblock(self) -> None:
        host("ip", "link", "set", self._links[0], "up")

    # commands

    def execute(
        self, command: str, check_return: bool = True, timeout: float | None = 900
    ) -> tuple[int, str]:
        limit = [] if timeout is None else ["timeout", f"{max(0.1, timeout):.1f}"]
        shell = ["/bin/bash", "-c", f"set -euo pipefail; {command}"]
        done = subprocess.run(
            [*_inside(self.connect()), *limit, *shell],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            env={"PATH": PATH, "HOME": "/root"},
            cwd="/",
            check=False,
        )
        return done.returncode, done.stdout


def bridge(vlan: int) -> str:
    """The network of that number, made if there is none yet."""
    name = f"vlan{vlan}"
    if host("ip", "link", "show", name, check=False).returncode:
        host("ip", "link", "add", name, "type", "bridge", "forward_delay", "0")
        host("ip", "link", "set", name, "up")
    return name


def _inside(pid: int) -> list[str]:
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r"]
