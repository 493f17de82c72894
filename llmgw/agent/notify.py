"""What systemd hears of us: ready, reloading, status, and that the loop still turns.

The protocol is sd_notify(3): datagrams to the socket that $NOTIFY_SOCKET names. Where
there is none, nothing is sent and nothing is missed.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

import anyio

log = logging.getLogger(__name__)


class Systemd:
    """The service manager that started us, if one did."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # A leading @ is how an abstract socket is written.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._status = ""
        self._watchdog = _watchdog(environment)

    def ready(self) -> None:
        """Configuration and supervisor are up. The control plane may still be away."""
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; said when it changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    async def run(self) -> None:
        """Feed the watchdog from the very loop it watches, at half its patience."""
        if self._watchdog is None:
            return
        while True:
            self._send("WATCHDOG=1")
            await anyio.sleep(self._watchdog / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            # systemd reads late at worst; the loop must not wait for it.
            out.setblocking(False)
            try:
                out.sendto(message.encode(), self._address)
            except OSError as error:
                log.warning("systemd was not told error=%s", error)


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Seconds of WatchdogSec, if it is meant for this process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    wanted = environment.get("WATCHDOG_USEC", "")
    return int(wanted) / 1e6 if wanted.isdigit() and int(wanted) > 0 else None
