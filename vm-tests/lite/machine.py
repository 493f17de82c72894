"""One guest: a systemd-nspawn container that boots, as the NixOS test driver shows it.

The methods are those of the driver that our scripts use, with the same names, meanings
and defaults (vm-tests/lib/driver.pyi), and nothing more.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import toml

STARTED = time.monotonic()
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Failed(Exception):
    """What a script expected did not happen."""


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:7.2f}] {message}", flush=True)


def host(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True)


def retry(fn: Callable[[bool], bool], timeout: float = 900) -> None:
    """Call *fn* until it is true; the last time it is told so."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if fn(False):
            return
        time.sleep(0.2)
    if not fn(True):
        raise Failed(f"timed out after {timeout} s")


class Machine:
    def __init__(
        self, name: str, about: Mapping[str, Any], run: Path, base: Path, source: Path
    ) -> None:
        self.name = name
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
        self._write_files()
        self._make_network()

    def _write_files(self) -> None:
        etc, about = self._root / "etc", self._about
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(
            f"127.0.0.1 localhost\n::1 localhost\n{about['hosts']}"
        )
        system = etc / "systemd/system"
        for unit, text in about["units"].items():
            (system / unit).write_text(text)
        wants = system / "multi-user.target.wants"
        wants.mkdir(parents=True, exist_ok=True)
        for unit in about["wants"]:
            (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
        for path, text in about["etc"].items():
            file = etc / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        if about["config"] is not None:
            (etc / "llmgw").mkdir()
            (etc / "llmgw/agent.toml").write_text(toml.dumps(about["config"]))
        (etc / "polkit-1/rules.d/10-llmgw.rules").write_text(about["polkit"])
        (etc / "tmpfiles.d/llmgw.conf").write_text("\n".join(about["tmpfiles"]) + "\n")
        (etc / "sysusers.d").mkdir(exist_ok=True)
        (etc / "sysusers.d/llmgw.conf").write_text(
            "".join(
                f'u {user} - "" {it["home"]}\n'
                + "".join(f"m {user} {group}\n" for group in it["groups"])
                for user, it in about["users"].items()
            )
        )

    def _make_network(self) -> None:
        host("ip", "netns", "add", self.name)
        host("ip", "-n", self.name, "link", "set", "lo", "up")
        for nic in self._about["interfaces"]:
            bridge, link = (
                f"vlan{nic['vlan']}",
                f"n{self._about['number']}v{nic['vlan']}",
            )
            if host("ip", "link", "show", bridge, check=False).returncode:
                host(
                    "ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0"
                )
                host("ip", "link", "set", bridge, "up")
            peer = ("peer", "name", nic["name"], "netns", self.name)
            host("ip", "link", "add", link, "type", "veth", *peer)
            host("ip", "link", "set", link, "master", bridge, "up")
            for address in nic["addresses"]:
                add = ("addr", "add", address, "dev", nic["name"])
                host(
                    "ip", "-n", self.name, *add, *(["nodad"] if ":" in address else [])
                )
            host("ip", "-n", self.name, "link", "set", nic["name"], "up")
            self._links.append(link)

    # log

    def log(self, msg: str) -> None:
        say(f"{self.name}: {msg}")

    @contextmanager
    def nested(self, msg: str) -> Generator[None]:
        begin = time.monotonic()
        yield
        self.log(f"{msg[:100]} ({time.monotonic() - begin:.2f} s)")

    def last_words(self) -> str:
        """What our units said, for whoever has to find out why a test failed."""
        if self._process is None:
            return "(off)"
        units = "-u 'llmgw*'"
        return self.execute(
            f"journalctl -b --no-pager -o short-monotonic {units} | tail -40"
        )[1]

    # power

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

    def shutdown(self) -> None:
        if self._process:
            self.execute("systemctl poweroff --no-block --no-wall 2>/dev/null")
            self.wait_for_shutdown()

    def reboot(self) -> None:
        self.shutdown()
        self.start()

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

    def succeed(self, *commands: str, timeout: float | None = None) -> str:
        said = ""
        for command in commands:
            status, text = self.execute(command, timeout=timeout)
            if status:
                raise Failed(f"{self.name}: `{command}` failed with {status}\n{text}")
            said += text
        return said

    def fail(self, *commands: str, timeout: float | None = None) -> str:
        said = ""
        for command in commands:
            status, text = self.execute(command, timeout=timeout)
            if status == 0:
                raise Failed(f"{self.name}: `{command}` succeeded, it must not\n{text}")
            said += text
        return said

    def wait_until_succeeds(self, command: str, timeout: float = 900) -> str:
        said = ""

        def succeeds(_: bool) -> bool:
            nonlocal said
            status, said = self.execute(command, timeout=timeout)
            return status == 0

        with self.nested(f"waited for: {command}"):
            try:
                retry(succeeds, timeout)
            except Failed as error:
                raise Failed(f"{self.name}: `{command}` {error}\n{said}") from None
        return said

    def wait_until_fails(self, command: str, timeout: float = 900) -> str:
        with self.nested(f"waited for the end of: {command}"):
            retry(lambda _: self.execute(command, timeout=timeout)[0] != 0, timeout)
        return ""

    def sleep(self, secs: int) -> None:
        self.succeed(f"sleep {secs}")

    # units, files, ports

    def systemctl(self, q: str) -> tuple[int, str]:
        return self.execute(f"systemctl {q}")

    def get_unit_property(self, unit: str, property: str) -> str:
        shown = self.succeed(
            f"systemctl show {shlex.quote(unit)} --property={property}"
        )
        return shown.strip().partition("=")[2]

    def wait_for_unit(self, unit: str, timeout: float = 900) -> None:
        def active(_: bool) -> bool:
            state = self.get_unit_property(unit, "ActiveState")
            if state == "failed":
                raise Failed(f"{self.name}: {unit} has failed")
            return state == "active"

        with self.nested(f"waited for {unit}"):
            retry(active, timeout)

    def wait_for_file(self, filename: str, timeout: float = 900) -> None:
        self.wait_until_succeeds(f"test -e {filename}", timeout)

    def wait_for_open_port(
        self, port: int, addr: str = "localhost", timeout: float = 900
    ) -> None:
        self.wait_until_succeeds(f"nc -z {addr} {port}", timeout)


def _inside(pid: int) -> list[str]:
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r"]
