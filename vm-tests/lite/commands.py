"""What a script may do with a machine, whatever it is, once commands can run there.

The methods are those of the NixOS test driver that our scripts use, with the same
names, meanings and defaults (vm-tests/lib/driver.pyi), and nothing more.
"""

import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager

STARTED = time.monotonic()


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


class Commands(ABC):
    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def is_on(self) -> bool: ...

    @abstractmethod
    def execute(
        self, command: str, check_return: bool = True, timeout: float | None = 900
    ) -> tuple[int, str]:
        """The command's status and what it wrote to its standard output."""

    @abstractmethod
    def start(self, allow_reboot: bool = False) -> None: ...

    @abstractmethod
    def wait_for_shutdown(self) -> None: ...

    @abstractmethod
    def release(self) -> None:
        """The end of the test: everything of this guest goes."""

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
        if not self.is_on():
            return "(off)"
        units = "-u 'llmgw*'"
        return self.execute(
            f"journalctl -b --no-pager -o short-monotonic {units} | tail -40"
        )[1]

    # power

    def shutdown(self) -> None:
        if self.is_on():
            self.execute("systemctl poweroff --no-block --no-wall 2>/dev/null")
            self.wait_for_shutdown()

    def reboot(self) -> None:
        self.shutdown()
        self.start()

    # commands

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
