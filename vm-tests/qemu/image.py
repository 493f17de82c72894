"""The disk and the first files of a guest with a kernel of its own, made once.

The root is that of the light guests (lite/base.py), the kernel Debian's, as the
machine's own apt has it. No loop device and no privilege beyond theirs is needed.
"""

import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

import base

# Of the kernel's modules, what is needed to boot and what tests ask for.
TO_BOOT = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
TO_TEST = (
    *("virtio_net", "virtio_console", "virtio_rng", "autofs4", "configfs", "dm_mod"),
    *("bonding", "8021q", "dummy", "veth", "bridge", "sch_netem", "sch_fq_codel"),
    *("rdma_rxe", "ib_uverbs", "crc32_generic"),  # rxe says ENOENT without crc32
    *("nf_tables", "nft_ct", "nft_reject_inet", "nft_limit", "nft_numgen"),
)
# What only costs seconds at an emulated processor's speed.
OFF = (
    *("serial-getty@ttyS0.service", "getty@tty1.service", "ldconfig.service"),
    *("proc-sys-fs-binfmt_misc.automount", "systemd-binfmt.service", "fstrim.timer"),
    *("systemd-journal-catalog-update.service", "systemd-hwdb-update.service"),
    *("systemd-update-done.service", "systemd-firstboot.service", "apt-daily.timer"),
    *("systemd-pstore.service", "apt-daily-upgrade.timer", "dpkg-db-backup.timer"),
    *("e2scrub_all.timer", "e2scrub_reap.service", "systemd-timesyncd.service"),
)
# A root shell on a virtio port, opened once: a second opening of it fails.
SHELL = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/bash -c 'modprobe virtio_console; until [ -c /dev/vport*p1 ]; \
do sleep 0.02; done; exec 0<>/dev/vport*p1 1>&0 2>/dev/console; echo SHELL-READY; \
exec bash --norc'
Environment=HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
Restart=always
"""
INIT = """\
#!/bin/sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev; $b mount -t proc proc /proc
echo LLMGW-KERNEL-RUNS
for module in $($b cat /order); do $b insmod /modules/$module; done
until [ -b /dev/vda ]; do $b sleep 0.02; done
$b mount -t ext4 /dev/vda /newroot
$b umount /proc; $b mount --move /dev /newroot/dev
exec $b switch_root /newroot /sbin/init
"""


def made(root: Path) -> Path:
    """The folder with vmlinuz, initrd.gz and root.ext4; made now if it is not there."""
    own = Path(__file__).read_bytes()
    key = hashlib.sha256(own + root.name.encode() + package().encode()).hexdigest()
    folder = base.CACHE / f"kernel-{key[:12]}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        print(f"making the guests' disk in {folder} (half a minute)", flush=True)
        _make(root, part)
        for old in base.CACHE.glob("kernel-*"):
            if old != part:
                shutil.rmtree(old)
        part.rename(folder)
    return folder


def package() -> str:
    """The newest kernel's package, which apt's meta package depends on."""
    shown = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Depends: (linux-image-\S+)", shown.stdout)
    if found is None:
        raise SystemExit("vm-qemu: apt knows no linux-image-amd64: apt-get update")
    return found[1]


def _make(root: Path, folder: Path) -> None:
    kernel = folder / "kernel"
    subprocess.run(
        ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package()],
        cwd=folder,
        check=True,
    )
    (deb,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", deb, kernel], check=True)
    (version,) = (one.name for one in (kernel / "lib/modules").iterdir())
    subprocess.run(["depmod", "-b", kernel, version], check=True)
    tree = folder / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", root, tree], check=True)
    for module in modules(kernel, version, TO_BOOT + TO_TEST):
        target = tree / "usr" / module.relative_to(kernel)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, target)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(
            kernel / "lib/modules" / version / name, tree / "usr/lib/modules" / version
        )
    subprocess.run(["depmod", "-b", tree, version], check=True)
    _units(tree)
    disk = folder / "root.ext4"
    mkfs = ["mkfs.ext4", "-q", "-F", "-d", tree, "-O", "^has_journal,^metadata_csum"]
    subprocess.run([*mkfs, disk, "3G"], check=True)
    shutil.copy(kernel / f"boot/vmlinuz-{version}", folder / "vmlinuz")
    _initrd(folder, modules(kernel, version, TO_BOOT))
    for made_for_it in (tree, kernel, folder / "ird"):
        shutil.rmtree(made_for_it)
    deb.unlink()


def modules(kernel: Path, version: str, names: tuple[str, ...]) -> list[Path]:
    """Their files and those they need, in the order they are loaded."""
    found: dict[Path, None] = {}
    for name in names:
        shown = subprocess.run(
            ["modprobe", "-d", kernel, "-S", version, "--show-depends", name],
            capture_output=True,
            text=True,
            check=False,  # built in, or not of this kernel: its test will say so
        )
        for line in shown.stdout.splitlines():
            if line.startswith("insmod "):
                found[Path(line.split()[1])] = None
    return list(found)


def _units(tree: Path) -> None:
    system = tree / "etc/systemd/system"
    (system / "shell.service").write_text(SHELL)
    wants = system / "sysinit.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "shell.service").symlink_to("../shell.service")
    for unit in OFF:
        (system / unit).unlink(missing_ok=True)
        (system / unit).symlink_to("/dev/null")
    for stamp in ("etc/.updated", "var/.updated"):
        (tree / stamp).touch()


def _initrd(folder: Path, needed: list[Path]) -> None:
    ird = folder / "ird"
    for name in ("bin", "modules", "newroot", "proc", "dev"):
        (ird / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", ird / "bin")
    (ird / "bin/sh").symlink_to("busybox")
    order: list[str] = []
    for module in needed:
        content = module.read_bytes()
        if module.suffix == ".xz":  # busybox cannot
            content = lzma.decompress(content)
        order.append(module.name.removesuffix(".xz"))
        (ird / "modules" / order[-1]).write_bytes(content)
    (ird / "order").write_text("\n".join(order))
    (ird / "init").write_text(INIT)
    (ird / "init").chmod(0o755)
    names = "\n".join(str(p.relative_to(ird)) for p in sorted(ird.rglob("*")))
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"],
        cwd=ird,
        input=names.encode(),
        stdout=subprocess.PIPE,
        env=os.environ,
        check=True,
    )
    (folder / "initrd.gz").write_bytes(gzip.compress(packed.stdout, 1))
