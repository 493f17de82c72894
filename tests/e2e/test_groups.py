"""Engines that span nodes: real agents on addresses of their own, one control plane."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmgw.agent.door import ask
from llmgw.engines.place import Build
from llmgw.errors import LlmgwError
from tests.e2e.fleet import Fleet, Program, alive, until
from tests.fakes import vllm
from tests.fakes.ports import free_port

ADDRESSES = {"n1": "127.0.0.2", "n2": "127.0.0.3", "n3": "127.0.0.4"}


class Nodes:
    """Several agents of one machine, each bound to an address of its own."""

    def __init__(self, fleet: Fleet, *names: str) -> None:
        self.fleet = fleet
        self.names = names
        self.folder = fleet.folder
        self.control = free_port()
        self.agents: dict[str, Program] = {}
        fleet.control("cp", self.control, "leader 1")
        until((self.folder / "cp/admin.sock").exists, "the control plane serves")

    def start(self, name: str) -> Program:
        file = self.folder / f"{name}.toml"
        ports = self.fleet.port_range(self.names.index(name))
        file.write_text(
            f'node_id = "{name}"\nmgmt_addr = "{ADDRESSES[name]}"\n'
            f'mgmt_interface = "lo"\n'
            f'servers = ["http://127.0.0.1:{self.control}"]\n'
            f'state_dir = "{self.folder}/{name}"\n'
            f'engines_dir = "{self.folder}/engines-{name}"\n'
            f'model_dirs = ["{self.folder}/models"]\n'
            f'heartbeat_interval = "1s"\nreconnect_base = "200ms"\n'
            f'[supervisor]\nbackend = "process"\nstop_grace = "2s"\n'
            f'health_interval = "100ms"\nport_quarantine = "0s"\n'
            f'port_range = "{ports}"\n'
        )
        program = self.fleet.start(
            f"{name}.log",
            ["agent", "--config", file, "--socket", self.folder / f"{name}.sock"],
        )
        self.agents[name] = program
        return program

    def want(self, **replicas: list[dict[str, Any]]) -> None:
        new = self.folder / "desired.json.new"
        new.write_text(json.dumps(replicas))
        new.replace(self.folder / "desired.json")

    def status(self, name: str) -> dict[str, Any]:
        try:
            (status,) = ask(self.folder / f"{name}.sock", "status")
        except LlmgwError:
            return {"replicas": []}
        for one in status["replicas"]:
            if one.get("pid"):
                self.fleet.engines.add(one["pid"])
        return status

    def ready(self, *unlike: int) -> dict[str, dict[str, Any]]:
        """The one replica of each node, once all are ready and none has such a pid."""

        def seen() -> dict[str, dict[str, Any]] | None:
            found = {
                name: one
                for name in self.names
                for one in self.status(name)["replicas"]
                if one["state"] == "ready" and one["pid"] not in unlike
            }
            return found if len(found) == len(self.names) else None

        return until(seen, "all are ready", 40, self.fleet.logs)

    def groups(self) -> list[dict[str, Any]]:
        return self.admin("groups")["groups"]

    def deaths(self) -> list[str]:
        events = self.admin("events")["events"]
        texts = [
            one["event"]["text"] for one in events if one["event"]["kind"] == "group"
        ]
        return [text for text in texts if " is backoff" in text]

    def admin(self, path: str) -> Any:
        transport = httpx.HTTPTransport(uds=str(self.folder / "cp/admin.sock"))
        token = (self.folder / "cp/admin.token").read_text().strip()
        with httpx.Client(transport=transport, trust_env=False) as client:
            return client.get(
                f"http://cp/v1/admin/{path}",
                headers={"Authorization": f"Bearer {token}"},
            ).json()


def member(name: str, rank: int, size: int, **more: Any) -> dict[str, Any]:
    group = {"id": "g", "rank": rank, "size": size, "port": more.pop("port")}
    return {"id": f"r{rank}", "engine": "llamacpp", "group": group, **more}


@pytest.mark.timeout(180)
def test_a_model_over_two_llama_cpps_outlives_the_death_of_either(
    fleet: Fleet, llama: Build, tiny: Path
) -> None:
    """T89, T90: rpc-server and head end together, start together, and it serves.

    T62: an rpc-server without a home or a cache folder fails as a service.
    """
    nodes = Nodes(fleet, "n1", "n2")
    home = Path(llama.binary)
    while home.parent.name != ".builds":
        home = home.parent
    for name in nodes.names:
        (fleet.folder / f"engines-{name}").mkdir()
        (fleet.folder / f"engines-{name}/llama").symlink_to(home)
    (fleet.folder / "models").mkdir()
    (fleet.folder / "models/tiny.gguf").symlink_to(tiny)
    model = {"name": "tiny", "path": str(fleet.folder / "models/tiny.gguf")}
    more: dict[str, Any] = {"model": model, "context": 256, "build": "llama"}
    port = fleet.first_port(len(nodes.names))
    nodes.want(
        n1=[member("n1", 0, 2, port=port, **more)],
        n2=[member("n2", 1, 2, port=port, **more)],
    )
    nodes.start("n1")
    until(lambda: nodes.status("n1").get("rev_applied"), "n1 is there", 20, fleet.logs)
    assert nodes.status("n1")["replicas"] == []  # all or none
    nodes.start("n2")
    first = nodes.ready()
    assert first["n2"]["ports"] == {"rpc": port + 1}
    completes(first["n1"])
    argv = Path(f"/proc/{first['n2']['pid']}/cmdline").read_text().split("\0")
    assert argv[1:5] == ["--host", "127.0.0.3", "--port", str(port + 1)]

    environ = Path(f"/proc/{first['n2']['pid']}/environ").read_text().split("\0")
    homes = dict(one.split("=", 1) for one in environ if one)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        assert Path(homes[name]).is_dir()

    for victim in ("n2", "n1"):
        before = nodes.ready()
        os.kill(before[victim]["pid"], signal.SIGKILL)
        after = nodes.ready(*(one["pid"] for one in before.values()))
        assert not any(alive(one["pid"]) for one in before.values())
        generations = {one["generation"] for one in after.values()}
        assert generations == {before["n1"]["generation"] + 1}
        completes(after["n1"])
        if victim == "n2":
            [death] = nodes.deaths()
            assert "r1 on n2 is backoff" in death


def completes(replica: dict[str, Any]) -> None:
    url = f"http://{replica['address']}:{replica['ports']['api']}/v1/completions"
    body = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}
    with httpx.Client(trust_env=False, timeout=20) as client:
        answer = client.post(url, json=body).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 5


def build(folder: Path, digest: str) -> None:
    """The fake vLLM as a build that says of itself which it is."""
    (folder / "fake").mkdir(parents=True)
    program = folder / "fake/vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {vllm.__file__} "$@"\n')
    program.chmod(0o755)
    manifest = {"engine": "vllm", "binary": "vllm", "version": "1", "digest": digest}
    (folder / "fake/manifest.json").write_text(json.dumps(manifest))


@pytest.mark.timeout(180)
def test_three_nodes_start_when_the_last_has_the_same_build_and_fall_together(
    fleet: Fleet,
) -> None:
    """T88, T90: another build is refused before launch; one death is told once."""
    nodes = Nodes(fleet, "n1", "n2", "n3")
    (fleet.folder / "models/m").mkdir(parents=True)
    model = {"name": "m", "path": str(fleet.folder / "models/m")}
    port = fleet.first_port(len(nodes.names))
    for name in nodes.names:
        digest = "sha256:other" if name == "n3" else "sha256:one"
        build(fleet.folder / f"engines-{name}", digest)
        nodes.start(name)
    nodes.want(
        **{
            name: [
                member(name, rank, 3, port=port, model=model)
                | {"engine": "vllm", "build": "fake"}
            ]
            for rank, name in enumerate(nodes.names)
        }
    )
    until(
        lambda: any(
            "different builds" in one.get("reason", "") for one in nodes.groups()
        ),
        "n3 is refused",
        20,
        fleet.logs,
    )
    assert not any(nodes.status(name)["replicas"] for name in nodes.names)
    manifest = fleet.folder / "engines-n3/fake/manifest.json"
    manifest.write_text(manifest.read_text().replace("other", "one"))
    nodes.agents["n3"].send(signal.SIGHUP)  # it looks at its builds again

    first = nodes.ready()
    os.kill(first["n2"]["pid"], signal.SIGKILL)
    second = nodes.ready(*(one["pid"] for one in first.values()))

    assert {one["generation"] for one in first.values()} == {1}
    assert {one["generation"] for one in second.values()} == {2}
    assert not any(alive(one["pid"]) for one in first.values())
    assert len(nodes.deaths()) == 1
    environ = Path(f"/proc/{second['n2']['pid']}/environ").read_text().split("\0")
    assert "NCCL_SOCKET_IFNAME==lo" in environ
    assert {"GLOO_SOCKET_IFNAME=lo", "TP_SOCKET_IFNAME=lo"} < set(environ)
