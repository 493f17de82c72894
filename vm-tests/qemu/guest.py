"""One guest: a QEMU machine with a kernel of its own, as the NixOS driver shows it.

All start as copies of one that was booted once and saved: in seconds, also where its
processor is emulated. After a power cut it boots for real, from the disk it had.
"""

import base64
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import files
from commands import Commands, Failed, host, say
from machine import bridge

CARDS = 4  # every guest has them; the saved one does
PARCEL = 16 * 1024 * 1024  # what is put into a guest, as a disk of always this size
EMULATED = 4.0  # how much longer a command may take there
CMDLINE = (
    "console=ttyS0 root=/dev/vda rw quiet loglevel=3 systemd.show_status=0 "
    "net.ifnames=0 mitigations=off tsc=reliable no_timer_check"
)


class Qemu:
    """The process, its root shell and its monitor."""

    def __init__(
        self, image: Path, disk: Path, run: Path, accel: str, tag: str
    ) -> None:
        self._image = image
        self._disk = disk
        self._run = run
        self._accel = accel
        self._tag = tag
        self._asked = 0
        self._shell: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self, saved: bool, patience: float = 240) -> None:
        """Start it, cold or as it was saved, until its shell answers."""
        for name in ("shell", "monitor"):
            (self._run / name).unlink(missing_ok=True)
        cpu = "host" if self._accel == "kvm" else "qemu64"
        accel = "kvm" if self._accel == "kvm" else "tcg,tb-size=96"
        chardev = f"socket,id=shell,path={self._run}/shell,server=on,wait=off"
        command = [
            *("qemu-system-x86_64", "-M", "q35", "-accel", accel, "-cpu", cpu),
            *("-m", "512", "-nodefaults", "-no-user-config", "-display", "none"),
            *("-kernel", f"{self._image}/vmlinuz", "-append", CMDLINE),
            *("-initrd", f"{self._image}/initrd.gz"),
            *("-serial", f"file:{self._run}/console"),
            *("-drive", f"file={self._disk},format=qcow2,if=none,id=root"),
            *("-device", "virtio-blk-pci,drive=root"),
            *("-drive", f"file={self._run}/parcel,format=raw,readonly=on,if=none,id=p"),
            *("-device", "virtio-blk-pci,drive=p", "-device", "virtio-rng-pci"),
            *("-device", "virtio-serial-pci", "-chardev", chardev),
            *("-device", "virtserialport,chardev=shell,name=shell"),
            *("-monitor", f"unix:{self._run}/monitor,server=on,wait=off"),
        ]
        for card in range(CARDS):
            tap = f"tap,id=n{card},ifname={self._tag}c{card},script=no,downscript=no"
            command += ["-netdev", tap, "-device", f"virtio-net-pci,netdev=n{card}"]
        if saved:
            command += ["-loadvm", "ready"]
        self._end = time.monotonic() + patience
        with (self._run / "said").open("wb") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self._shell = self._connect("shell")
        self._sync()

    def _connect(self, name: str) -> socket.socket:
        while True:
            found = socket.socket(socket.AF_UNIX)
            try:
                found.connect(str(self._run / name))
            except OSError:
                found.close()
                self._still()
                time.sleep(0.02)
            else:
                found.settimeout(0.5)
                return found

    def _still(self) -> None:
        assert self._process
        if self._process.poll() is not None or time.monotonic() > self._end:
            said = (self._run / "said").read_text()[-500:]
            console = self.console()[-1000:]
            self.kill()
            raise Failed(f"{self._tag}: the guest does not answer\n{said}\n{console}")

    def _sync(self) -> None:
        """A booting guest has no shell yet; a saved one may open its shell anew."""
        assert self._shell
        heard, count = b"", 0
        while not count or f"SYNC{count}.".encode() not in heard:
            self._still()
            count += 1
            with suppress(OSError):  # no answer yet, or QEMU is gone: that is looked at
                self._shell.sendall(f"echo SYNC{count}.\n".encode())
                while f"SYNC{count}.".encode() not in heard:
                    more = self._shell.recv(65536)
                    if not more:
                        break
                    heard += more

    def console(self) -> str:
        file = self._run / "console"
        return file.read_text(errors="replace") if file.exists() else ""

    def run(self, command: str, timeout: float | None) -> tuple[int, str]:
        assert self._shell, "a guest that is off has no shell"
        self._asked += 1
        mark = f"ENDED{self._asked}"
        packed = base64.b64encode(f"set -euo pipefail; {command}".encode()).decode()
        limit = f"timeout {timeout:.1f} " if timeout is not None else ""
        shell = f'{limit}bash -c "$(echo {packed} | base64 -d)" < /dev/null'
        self._shell.sendall(f"{shell}; echo {mark}:$?\n".encode())
        end = None if timeout is None else time.monotonic() + timeout + 30
        heard = b""
        while end is None or time.monotonic() < end:
            try:
                heard += self._shell.recv(65536)
            except TimeoutError:
                self._end = time.monotonic() + 1
                self._still()
                continue
            if found := re.search(mark.encode() + rb":(\d+)\n", heard):
                said = heard[: found.start()].decode(errors="replace")
                return int(found[1]), said
        raise Failed(f"{self._tag}: no answer to `{command}`\n{heard[-300:]!r}")

    def monitor(self, command: str) -> str:
        with self._connect("monitor") as door:
            door.settimeout(60)
            heard = b""
            for said in (b"", command.encode() + b"\n"):
                door.sendall(said)
                heard = b""
                while not heard.endswith(b"(qemu) "):
                    heard += door.recv(4096)
        return heard.decode(errors="replace")

    def leave_shell(self) -> None:
        if self._shell:
            self._shell.close()
            self._shell = None

    def wait(self) -> None:
        if self._process:
            self._process.wait()
        self.leave_shell()
        self._process = None

    def kill(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGKILL)
        self.wait()

    @property
    def is_on(self) -> bool:
        return self._process is not None


class Guest(Commands):
    def __init__(
        self,
        name: str,
        about: Mapping[str, Any],
        run: Path,
        image: Path,
        source: Path,
        accel: str,
    ) -> None:
        super().__init__(name)
        self._about = about
        self._tag = f"n{about['number']}"
        self._dir = run / name
        self._dir.mkdir()
        disk = self._dir / "disk.qcow2"
        shutil.copy(image / "ready.qcow2", disk)
        self._pack(source)
        self._qemu = Qemu(image, disk, self._dir, accel, self._tag)
        self._is_new = True
        self._is_slow = accel == "tcg"

    def _pack(self, source: Path) -> None:
        """What makes a copy of the saved guest this node, as a disk with a tar."""
        tree = self._dir / "tree"
        files.place(tree, self.name, self._about)
        parcel = self._dir / "parcel"
        with tarfile.open(parcel, "w") as tar:
            tar.add(tree, arcname=".", filter=_of_root)
            tar.add(source / "llmgw", arcname="opt/llmgw/source/llmgw", filter=_of_root)
        os.truncate(parcel, PARCEL)

    # power

    def is_on(self) -> bool:
        return self._qemu.is_on

    def start(self, allow_reboot: bool = False) -> None:
        if self._qemu.is_on:
            return
        begin = time.monotonic()
        self._qemu.boot(saved=self._is_new)
        self._plug()
        commands = [
            f"hostname {self.name}",
            f"date -s @{time.time():.0f} >/dev/null",
            *self._network(),
        ]
        if self._is_new:
            # its disk was another one when it was saved: nothing read before counts
            commands += [
                "blockdev --flushbufs /dev/vdb",
                "tar -x -C / -f /dev/vdb",
                "rm -f /etc/machine-id && systemd-machine-id-setup >/dev/null 2>&1",
                "systemctl restart systemd-journald.service",  # its folder is the id's
                "systemd-sysusers && systemd-tmpfiles --create",
                "systemctl daemon-reload",
                "systemctl try-restart polkit.service",
                "systemctl start --no-block "
                + " ".join(self._about["wants"] or ["-.mount"]),
            ]
        how = "from its saved state" if self._is_new else "cold"
        self._is_new = False
        self.succeed(" && ".join(commands), timeout=120)
        self.log(f"started {how} ({time.monotonic() - begin:.1f} s)")

    def _plug(self) -> None:
        for card, nic in enumerate(self._about["interfaces"]):
            tap = f"{self._tag}c{card}"
            host("ip", "link", "set", tap, "master", bridge(nic["vlan"]), "up")

    def _network(self) -> list[str]:
        """Names, hardware addresses and addresses as the description has them."""
        number = self._about["number"]
        wanted = self._about["interfaces"]
        commands = [f"ip link set eth{n} down name card{n}" for n in range(CARDS)]
        for card, nic in enumerate(wanted):
            mac = f"52:54:00:12:{nic['vlan']:02x}:{number:02x}"
            name = nic["name"]
            commands.append(f"ip link set card{card} name {name} address {mac}")
            for address in nic["addresses"]:
                more = " nodad" if ":" in address else ""
                commands.append(f"ip addr add {address} dev {name}{more}")
            commands.append(f"ip link set {name} up")
        return commands

    def wait_for_shutdown(self) -> None:
        self._qemu.wait()

    def crash(self) -> None:
        if self._qemu.is_on:
            self.log("power cut")
            self._qemu.kill()

    def release(self) -> None:
        self.crash()
        shutil.rmtree(self._dir)

    # network: the first interface, as the driver does

    def block(self) -> None:
        self._qemu.monitor("set_link n0 off")

    def unblock(self) -> None:
        self._qemu.monitor("set_link n0 on")

    # commands

    def execute(
        self, command: str, check_return: bool = True, timeout: float | None = 900
    ) -> tuple[int, str]:
        self.start()
        if timeout is not None and self._is_slow:
            timeout *= EMULATED
        return self._qemu.run(command, timeout)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


def prepare(image: Path, run: Path) -> str:
    """Boots the one that all are copies of, and saves it; which accelerator it had.

    Asked for first is KVM. Some machines have a /dev/kvm under which no ordinary kernel
    runs; then the processor is emulated.
    """
    ready = image / "ready.qcow2"
    if ready.exists():
        return (image / "accelerator").read_text()
    (run / "parcel").write_bytes(b"")
    os.truncate(run / "parcel", PARCEL)
    accelerators = (
        ["kvm", "tcg"] if os.access("/dev/kvm", os.R_OK | os.W_OK) else ["tcg"]
    )
    for accel in accelerators:
        part = image / "part.qcow2"
        backing = ("-b", image / "root.ext4", "-F", "raw")
        create = ["qemu-img", "create", "-q", "-f", "qcow2", *backing, part]
        subprocess.run(create, check=True)
        qemu = Qemu(image, part, run, accel, "n0")
        begin = time.monotonic()
        try:
            qemu.boot(saved=False, patience=60 if accel == "kvm" else 300)
        except Failed as error:
            if accel == accelerators[-1]:
                raise
            say(f"no guest runs under {accel} here: {str(error).splitlines()[0]}")
            continue
        try:
            # what a person would call booted; then what tests need loaded once
            qemu.run("systemctl is-system-running --wait || true", 300)
            qemu.run("modprobe rdma_rxe; /opt/llmgw/bin/python3 -c 'import httpx'", 120)
            qemu.run("sync; echo 3 > /proc/sys/vm/drop_caches", 60)
            say(f"booted under {accel} ({time.monotonic() - begin:.1f} s)")
            qemu.leave_shell()
            qemu.monitor("savevm ready")
        finally:
            qemu.kill()
        (image / "accelerator").write_text(accel)
        part.rename(ready)
        return accel
    raise Failed("no guest boots")
