"""systemd hears what it must, and its absence is no fault."""

import os
import socket
from pathlib import Path

import anyio

from llmgw.agent.notify import Systemd


async def test_the_watchdog_is_fed_from_the_loop(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.setblocking(False)
        systemd = Systemd(
            {
                "NOTIFY_SOCKET": path,
                "WATCHDOG_USEC": "40000",
                "WATCHDOG_PID": str(os.getpid()),
            }
        )
        systemd.ready()
        systemd.status("connected")
        systemd.status("connected")
        systemd.reloading()
        heard: list[bytes] = []
        async with anyio.create_task_group() as group:
            group.start_soon(systemd.run)
            with anyio.fail_after(5):
                while heard.count(b"WATCHDOG=1") < 3:
                    await anyio.wait_readable(manager)
                    heard.append(manager.recv(200))
            group.cancel_scope.cancel()

    assert heard[:2] == [b"READY=1", b"STATUS=connected"]
    assert heard[2].startswith(b"RELOADING=1\nMONOTONIC_USEC=")


async def test_without_a_manager_nothing_is_sent_and_the_task_ends() -> None:
    systemd = Systemd({})

    systemd.ready()
    with anyio.fail_after(5):
        await systemd.run()


async def test_a_watchdog_meant_for_another_process_is_not_fed() -> None:
    with anyio.fail_after(5):
        await Systemd({"WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}).run()


def test_a_manager_that_is_gone_is_survived(tmp_path: Path) -> None:
    Systemd({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
