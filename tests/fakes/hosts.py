"""Machines as network namespaces: a node with its NICs, and the network beyond.

They have no names and are gone with the process that made them, so tests that run side
by side, or are killed, leave nothing behind.
"""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class Host:
    """One network namespace, held open by a file descriptor."""

    def __init__(self) -> None:
        self._fd = _in_thread(_unshare)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def run(self, *words: str, stdin: str = "") -> str:
        """A command in there, which must succeed."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def ip(self, line: str) -> str:
        return self.run("ip", *line.split())

    def filter(self, rule: str) -> None:
        """What happens, from now on, to packets that come in here."""
        chain = "type filter hook input priority 0;"
        table = f"table inet faults {{\nchain in {{\n{chain}\n{rule}\n}}\n}}\n"
        self.run("nft", "-f", "-", stdin=table)

    def heal(self) -> None:
        self.run("nft", "delete", "table", "inet", "faults")

    def listen(self, address: str, port: int = 0) -> socket.socket:
        """A socket that listens in there, to be used from here."""

        def make() -> socket.socket:
            self.enter()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            (info, *_) = socket.getaddrinfo(address, port, family, socket.SOCK_STREAM)
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(info[4])
            sock.listen(128)
            sock.setblocking(False)
            return sock

        return _in_thread(make)

    def datagrams(self, address: str, port: int) -> socket.socket:
        """One for datagrams in there, likewise."""

        def make() -> socket.socket:
            self.enter()
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, port))
            sock.setblocking(False)
            return sock

        return _in_thread(make)

    def enter(self) -> None:
        """The calling thread, and all it starts, are in there from now on."""
        if _libc.setns(self._fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def python(self, module: str, *words: str) -> list[str]:
        """How to run a module of the tests in there."""
        return ["nsenter", f"--net={self.path}", sys.executable, "-m", module, *words]

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def hosts(*nics: str) -> Generator[tuple[Host, Host]]:
    """A node with these NICs, and the network that each of them leads to.

    The other end of `mgmt0` is called `mgmt0` there too. All are up, none has an
    address, and duplicate address detection is off, for it takes a second.
    """
    node, beyond = Host(), Host()
    try:
        for host in (node, beyond):
            host.ip("link set lo up")
            host.run(
                "sh",
                "-c",
                "for scope in all default; do "
                "echo 0 > /proc/sys/net/ipv6/conf/$scope/accept_dad; done",
            )
        for nic in nics:
            node.ip(f"link add {nic} type veth peer name {nic} netns {beyond.path}")
            node.ip(f"link set {nic} up")
            beyond.ip(f"link set {nic} up")
        yield node, beyond
    finally:
        node.close()
        beyond.close()


def need_namespaces() -> None:
    """Skip where this machine does not let us make any."""
    try:
        Host().close()
    except PermissionError:
        pytest.skip("needs network namespaces: run as root, or with `unshare -rn`")
    for tool in ("ip", "nft", "nsenter"):
        if not any(
            os.access(f"{folder}/{tool}", os.X_OK)
            for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
        ):
            pytest.skip(f"needs {tool}: apt-get install iproute2 nftables util-linux")


def _unshare() -> int:
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise PermissionError(ctypes.get_errno(), "unshare")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _in_thread(function: Callable[[], T]) -> T:
    """In a thread of its own: it comes back in another namespace, or not at all."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except OSError as error:
            done.set_exception(error)

    threading.Thread(target=run).start()
    return done.result(10)
