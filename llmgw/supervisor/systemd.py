"""Engines as units of systemd, `llmgw-engine@ID.service`, from a template.

The template is the administrator's: its sandbox, its user, its limits. The agent writes
what is to be executed to the place where the unit's exec step reads it, and may start
and stop units of this one pattern. What is held is then a process like any other, with
the unit's cgroup around it; proof that it is ours is the unit's name together with the
InvocationID, which is new at each start.
"""

import logging
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from llmgw import wire
from llmgw.errors import EngineError
from llmgw.supervisor import gate, procfs
from llmgw.supervisor.backend import Place
from llmgw.supervisor.cgroup import Cgroup
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.ledger import Entry, Identity, Ledger
from llmgw.supervisor.process import Process, unstartable
from llmgw.supervisor.watch import described

log = logging.getLogger(__name__)

TEMPLATE = "llmgw-engine@.service"
# Asking PID 1 takes milliseconds; where it takes this long, it does not answer.
TIMEOUT = 30.0
# Before systemd has said which start this is: the ledger is written first.
TO_COME = "to come"


def unit(id: str) -> str:
    return TEMPLATE.replace("@", f"@{id}")


def is_there() -> bool:
    """Whether systemd runs this machine and knows the template."""
    if not Path("/run/systemd/system").is_dir() or not shutil.which("systemctl"):
        return False
    return systemctl("cat", TEMPLATE).returncode == 0


def systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Never asks for a password: whoever would have to give it is not there.

    No answer in time is an answer: it must not end the agent, with all that it holds.
    """
    program = shutil.which("systemctl") or "systemctl"
    command = [program, "--no-ask-password", *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        why = f"systemd does not answer for {TIMEOUT:.0f} s"
        log.warning("%s asked=%s", why, " ".join(arguments))
        return subprocess.CompletedProcess(command, 1, "", why)


def show(id: str) -> dict[str, str]:
    of_the_process = "MainPID,InvocationID,ExecMainCode,ExecMainStatus,Result"
    wanted = f"ActiveState,ControlGroup,{of_the_process}"
    answer = systemctl("show", "--property", wanted, unit(id))
    pairs = (line.partition("=") for line in answer.stdout.splitlines())
    return {key: value for key, _, value in pairs}


def exit_of(shown: Mapping[str, str]) -> wire.Exit:
    """systemd keeps the status of a unit's last process, for whoever asks."""
    code, status = shown.get("ExecMainCode"), shown.get("ExecMainStatus", "")
    if not status.isdigit():
        return wire.Exit(unknown=True)
    if code == "1":  # CLD_EXITED
        return wire.Exit(code=int(status))
    if code in ("2", "3"):  # CLD_KILLED, CLD_DUMPED
        return wire.Exit(signal=int(status))
    return wire.Exit(unknown=True)


class Unit:
    """A process held like any other; its end is told by systemd, which reaps it."""

    def __init__(self, id: str, process: Process, adopted: bool) -> None:
        self._id = id
        self._process = process
        self.adopted = adopted
        self._ended = wire.Exit(unknown=True)

    @property
    def identity(self) -> Identity:
        return self._process.identity

    async def exited(self) -> wire.Exit:
        await self._process.exited()
        return await run_sync(self._exit)

    async def stop(self, sign: signal.Signals, grace: float) -> wire.Exit:
        with anyio.CancelScope(shield=True):
            await self._process.stop(sign, grace)
            self._ended = await run_sync(self._settle)
        return self._ended

    def _settle(self) -> wire.Exit:
        """Its status first: a unit that is stopped and reset has none."""
        exit = self._exit()
        systemctl("stop", unit(self._id))
        systemctl("reset-failed", unit(self._id))
        return exit

    def _exit(self) -> wire.Exit:
        shown = show(self._id)
        if shown.get("InvocationID") not in (self.identity.invocation, ""):
            return wire.Exit(unknown=True)  # another start of it by now
        return exit_of(shown)

    def effort(self) -> tuple[int, int]:
        return self._process.effort()

    def look_around(self) -> None:
        self._process.look_around()

    def ooms(self) -> int | None:
        counted = self._process.ooms()
        if counted is not None:
            return counted
        # The unit's cgroup goes with its last process, and the count with it.
        shown = show(self._id)
        if shown.get("InvocationID") != self.identity.invocation:
            return None
        return 1 if shown.get("Result") == "oom-kill" else 0

    def pressure(self) -> float | None:
        return self._process.pressure()

    def close(self) -> None:
        self._process.close()


class Units:
    """The backend that leaves engines to systemd."""

    name = "systemd"
    mode = f"systemd, a unit each ({TEMPLATE})"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def start(
        self,
        id: str,
        launch: Launch,
        place: Place,
        record: Callable[[Identity, str | None], None],
    ) -> Unit:
        return await run_sync(self._start, id, launch, place, record)

    def _start(
        self,
        id: str,
        launch: Launch,
        place: Place,
        record: Callable[[Identity, str | None], None],
    ) -> Unit:
        try:
            # Its own file, not the journal: an agent without privileges may not read
            # that, and what an engine died of is in its last lines.
            gate.write(launch, place, log=str(place.log))
            nobody = Identity(
                pid=0, started=0, boot=procfs.boot_id(), invocation=TO_COME
            )
            record(nobody, None)
            answer = systemctl("start", unit(id))
        except OSError as error:
            raise unstartable(error, unit(id), place.run) from error
        except subprocess.SubprocessError as error:
            raise EngineError(f"cannot be started: {error}", where=unit(id)) from error
        if answer.returncode != 0:
            raise EngineError(
                f"cannot be started: {answer.stderr.strip()}",
                where=unit(id),
                fix=f"journalctl -u {unit(id)}",
            )
        found = self._found(id, adopted=False)
        if found is None:
            if refused := gate.refused(place.run):
                systemctl("reset-failed", unit(id))
                raise refused
            how = described(exit_of(show(id)))
            systemctl("stop", unit(id))
            raise EngineError(
                f"{how} as it started",
                where=unit(id),
                fix=f"journalctl -u {unit(id)}",
            )
        started, cgroup = found
        try:
            record(started.identity, str(cgroup.path))
        except EngineError:
            # The line that stands there names the unit, and is enough to find it.
            log.warning("ledger not amended replica=%s", id)
        return started

    async def adopt(self, entry: Entry) -> Unit | None:
        return await run_sync(self._adopt, entry)

    def _adopt(self, entry: Entry) -> Unit | None:
        if entry.identity.boot != procfs.boot_id():
            return None
        found = self._found(entry.id, adopted=True)
        if found is None:
            return None
        engine, _ = found
        if entry.identity.invocation not in (TO_COME, engine.identity.invocation):
            engine.close()  # somebody started it by hand since
            return None
        return engine

    def _found(self, id: str, *, adopted: bool) -> tuple[Unit, Cgroup] | None:
        """What runs in the unit now; None: nothing."""
        shown = show(id)
        pid = int(shown.get("MainPID", "0") or 0)
        if shown.get("ActiveState") not in ("active", "activating") or not pid:
            return None
        mount = procfs.cgroup_mount()
        identity = Identity.of(pid, shown.get("InvocationID"))
        if mount is None or identity is None:
            return None
        cgroup = Cgroup(mount / shown.get("ControlGroup", "").lstrip("/"))
        try:
            process = Process(id, self._ledger.tag, identity, cgroup)
        except OSError:
            return None
        if show(id).get("MainPID") != str(pid):
            process.close()  # ended, and its number was given away, as we took hold
            return None
        return Unit(id, process, adopted), cgroup

    async def clear(self, id: str) -> None:
        await run_sync(systemctl, "stop", unit(id))
