"""Real programs on loopback: control planes, an agent, and an engine that it starts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx

from llmgw.agent.door import ask
from llmgw.errors import LlmgwError
from tests.fakes.ports import free_block

T = TypeVar("T")
PATIENCE = 20.0
# Nodes of a fleet at most, its groups counted as one, and the ports that each is given.
NODES = 4
PORTS = 20


def until(
    fact: Callable[[], T | None],
    what: str,
    patience: float = PATIENCE,
    more: Callable[[], str] = str,
) -> T:
    """The fact, once it is true; else AssertionError with its name, and *more*."""
    end = time.monotonic() + patience
    while True:
        found = fact()
        if found:
            return found
        assert time.monotonic() < end, f"not in {patience:g} s: {what}\n{more()}"
        time.sleep(0.02)  # noqa: TID251 -- a plain test, between two looks


def llmgw(*words: str | Path) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "llmgw", *map(str, words)]


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Program:
    """`llmgw …` as a process of ours, its output in a file."""

    def __init__(self, log: Path, arguments: Sequence[str | Path]) -> None:
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                llmgw(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send it, and wait until the process has ended; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def wait(self, patience: float = PATIENCE) -> int:
        return self._process.wait(patience)

    @property
    def said(self) -> str:
        return self.log.read_text()


class Fleet:
    """One machine's worth of programs below *folder*; `end` leaves none running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"
        # Numbers of this fleet alone: others may run beside it on the same machine.
        self._ports = free_block(NODES * PORTS)
        self.want()
        self._programs: list[Program] = []
        self.engines: set[int] = set()

    # What is started -------------------------------------------------------------

    def control(self, name: str, port: int, role: str, *options: str | Path) -> Program:
        """A control plane that leads as its role file says."""
        self.role(name, role)
        arguments = ["control", "--listen", f"127.0.0.1:{port}"]
        arguments += ["--state-dir", self.folder / name]
        arguments += [
            "--role",
            "follow-file",
            "--role-file",
            self.folder / f"{name}.role",
        ]
        arguments += ["--desired-file", self.folder / "desired.json"]
        return self.start(f"{name}.log", [*arguments, *options])

    def agent(self, file: str = "agent.toml") -> Program:
        return self.start(
            "agent.log",
            ["agent", "--config", self.folder / file, "--socket", self.socket],
        )

    def start(self, log: str, arguments: Sequence[str | Path]) -> Program:
        program = Program(self.folder / log, arguments)
        self._programs.append(program)
        return program

    # What is said to it ----------------------------------------------------------

    def role(self, name: str, role: str) -> None:
        new = self.folder / f"{name}.role.new"
        new.write_text(role + "\n")
        new.replace(self.folder / f"{name}.role")

    def want(self, *replicas: dict[str, Any], node_id: str = "n1") -> None:
        new = self.folder / "desired.json.new"
        new.write_text(json.dumps({node_id: replicas}))
        new.replace(self.folder / "desired.json")

    def put(self, port: int, want: dict[str, Any], node_id: str = "n1") -> None:
        """As an operator does; for a node that no desired file names."""
        token = (self.folder / "token").read_text().strip()
        with httpx.Client(trust_env=False) as client:
            client.put(
                f"http://127.0.0.1:{port}/v1/admin/nodes/{node_id}/replicas",
                json=want,
                headers={"Authorization": f"Bearer {token}"},
            ).raise_for_status()

    def first_port(self, node: int) -> int:
        return self._ports + PORTS * node

    def port_range(self, node: int = 0) -> str:
        first = self.first_port(node)
        return f"{first}-{first + PORTS - 1}"

    def write(self, *servers: str, extra: str = "", supervisor: str = "") -> Path:
        """The agent's file; *supervisor*: what else stands in that table."""
        (self.folder / "models").mkdir(exist_ok=True)
        path = self.folder / "agent.toml"
        path.write_text(
            f'node_id = "n1"\n'
            f"servers = {json.dumps(servers)}\n"
            f'state_dir = "{self.folder}/state"\n'
            f'engines_dir = "{self.folder}/engines"\n'
            f'model_dirs = ["{self.folder}/models"]\n'
            'heartbeat_interval = "1s"\n'
            'reconnect_base = "200ms"\n'
            f"{extra}"
            f'[supervisor]\nport_range = "{self.port_range()}"\n{supervisor}'
        )
        return path

    def engine_file(self) -> str:
        """The part of the agent's file that lets it run the fake engine."""
        fake = Path(__file__).parent.parent / "fakes/engine.py"
        program = self.folder / "engine"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
        program.chmod(0o755)
        return (
            f'[engines.command]\nenabled = true\npath = "{program}"\n'
            'args = ["--host", "{host}", "--port", "{port}"]\n'
        )

    def kill_engine(self, pid: int) -> None:
        """As a power cut would."""
        assert pid in self.engines, "only what was seen as an engine of this fleet"
        os.killpg(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the engine is gone")

    # What is seen ----------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """What the agent says of itself; None while none answers."""
        try:
            (status,) = ask(self.socket, "status")
        except LlmgwError:
            return None
        for one in status["replicas"]:
            if one.get("pid"):
                self.engines.add(one["pid"])
        return status

    def text(self, command: str = "status") -> str:
        """What `llmgw COMMAND` prints to a person."""
        words = llmgw(command, "--socket", self.socket)
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return done.stdout

    def replica(self, state: str, name: str = "a") -> dict[str, Any]:
        """That replica, once it is in that state."""
        what = f"{name} is {state}"
        return until(lambda: self._in(name, state), what, more=self.logs)

    def _in(self, name: str, state: str) -> dict[str, Any] | None:
        status = self.status() or {"replicas": []}
        for one in status["replicas"]:
            if one["id"] == name and one["state"] == state:
                return one
        return None

    def connected(self, port: int) -> dict[str, Any]:
        """The link, once it is with that control plane."""
        what = f"is with {port}"
        return until(lambda: self._with(port), what, more=self.logs)

    def _with(self, port: int) -> dict[str, Any] | None:
        link = (self.status() or {"link": {}})["link"]
        with_it = str(link.get("server", "")).endswith(f":{port}")
        return link if with_it and link["state"] == "connected" else None

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def end(self) -> None:
        for program in self._programs:
            program.kill()
        for pid in self.engines:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def fleet(folder: Path) -> Iterator[Fleet]:
    found = Fleet(folder)
    try:
        yield found
    finally:
        found.end()
