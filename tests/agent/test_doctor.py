"""The doctor: each condition as it is well and as it is not."""

import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from llmgw.agent import bundle, equipment, host
from llmgw.agent.doctor import address, clock, examine, examine_without
from llmgw.agent.door import Door, once
from llmgw.agent.finding import Finding
from llmgw.agent.inventory import Inventory
from llmgw.agent.probes import Probe
from llmgw.agent.resolve import Resolved, read
from llmgw.config.keys import Config, Engines, LlamaCpp
from llmgw.discovery.found import Found
from llmgw.errors import ConfigError, Fault
from llmgw.wire import Problem
from tests.fakes.control_plane import ControlPlane, Exchange, Handler
from tests.fakes.ports import free_port

DOWN = "http://127.0.0.1:1"
NOTHING_BUILT = {
    "builds": Probe(lambda _: Found([], "PATH"), lambda: 60.0, lambda: 30.0)
}


def resolved(folder: Path, servers: list[str], **more: str) -> Resolved:
    file = folder / "agent.toml"
    lines = [
        'node_id = "n1"',
        f"servers = {servers}",
        'mgmt_addr = "127.0.0.1"',
        f'engines_dir = "{folder}/engines"',
        f'state_dir = "{folder}"',
        f'weights_cache = "{folder}/weights"',
        *(f'{key} = "{value}"' for key, value in more.items()),
    ]
    (folder / "weights").mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    return read(file)


async def examined(found: Resolved, where: Path) -> dict[str, Finding]:
    with anyio.fail_after(30):
        return {one.check: one async for one in examine(found, where, {})}


async def test_a_leader_and_one_that_is_down(tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    async with anyio.create_task_group() as group:
        plane = ControlPlane()
        await group.start(plane.run)
        found = await anyio.to_thread.run_sync(resolved, tmp_path, [down, plane.url])

        said = await examined(found, tmp_path / "no.sock")

        assert said[f"control plane {down}"].verdict == "warning"
        assert "refused" in said[f"control plane {down}"].evidence.lower()
        assert said[f"control plane {plane.url}"].verdict == "ok"
        assert said["leader"].verdict == "ok"
        assert said["certificates"].verdict == "ok"
        assert said["state_dir"].verdict == "ok"
        assert said["ports"].verdict == "ok"
        reached = said["reached from the control plane"]
        assert reached.verdict == "skipped"
        assert "no agent answers" in reached.evidence
        group.cancel_scope.cancel()


async def standby(exchange: Exchange) -> None:
    await exchange.answer({"leader": False, "epoch": 3, "url": "http://other:7443"})


async def refusing(exchange: Exchange) -> None:
    await exchange.refuse(403, "forbidden")


async def mute(_: Exchange) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("behaviour", "verdict", "words"),
    [
        (standby, "ok", "is a standby of http://other:7443"),
        (refusing, "warning", "forbidden"),
        (mute, "warning", "connects, and says nothing in"),
    ],
)
async def test_what_a_control_plane_answers_is_told(
    tmp_path: Path, behaviour: Handler, verdict: str, words: str
) -> None:
    async with anyio.create_task_group() as group:
        plane = ControlPlane()
        plane.on["leader"] = behaviour
        await group.start(plane.run)
        found = await anyio.to_thread.run_sync(resolved, tmp_path, [plane.url])

        said = await examined(found, tmp_path / "no.sock")

        line = said[f"control plane {plane.url}"]
        assert (line.verdict, words in line.evidence) == (verdict, True), line
        assert behaviour is not refusing or "firewall" not in line.fix
        assert said["leader"].verdict == "fault"
        group.cancel_scope.cancel()


async def test_a_name_that_nobody_knows(tmp_path: Path) -> None:
    server = "http://no-such-control-plane.invalid:7443"
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [server])

    said = await examined(found, tmp_path / "no.sock")

    line = said[f"control plane {server}"]
    assert line.verdict == "warning"
    assert "cannot be resolved" in line.evidence
    assert "DNS" in line.fix
    assert "firewall" not in line.fix
    assert said["certificates"].verdict == "skipped"
    assert said["configuration"].verdict == "warning"


def test_an_address_that_hangs_on_a_name_is_had_by_that_name(tmp_path: Path) -> None:
    """`set mgmt_addr` was the advice."""
    file = tmp_path / "agent.toml"
    file.write_text('servers = ["no-such.invalid:7443"]\n')

    [said] = address(read(file, without_files=True))

    assert said.verdict == "fault"
    assert "no-such.invalid" in said.evidence
    assert "DNS here, or /etc/hosts, knows no-such.invalid" in said.fix


@pytest.mark.parametrize(
    ("ahead", "verdict", "words"),
    [(1.0, "ok", "within"), (90.0, "warning", "90 s behind"), (-90.0, "warning", "of")],
)
def test_a_clock_that_is_off_is_told(ahead: float, verdict: str, words: str) -> None:
    """Certificates hang on it. The worst of several counts."""
    said = clock([0.5, ahead])

    assert said.verdict == verdict
    assert words in said.evidence
    assert clock([]).verdict == "skipped"


async def test_nobody_leads(tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [down])

    said = await examined(found, tmp_path / "no.sock")

    assert said["leader"].verdict == "fault"
    assert said["clock"].verdict == "skipped"


async def test_what_the_agent_was_refused_for_is_a_fault(tmp_path: Path) -> None:
    """A standby that knows of no leader was all that was told of it, as well."""
    stale = Problem(
        code="stale_epoch", severity="error", what="leads with epoch 1", fix="so"
    )
    other = Problem(code="clock_skew", severity="warning", what="is behind")

    async def status(_request: Any) -> Any:
        return {"problems": msgspec.to_builtins([other, stale])}

    async def stepped_down(exchange: Exchange) -> None:
        await exchange.answer({"leader": False, "epoch": 50})

    where = tmp_path / "agent.sock"
    async with anyio.create_task_group() as group:
        plane = ControlPlane()
        plane.on["leader"] = stepped_down
        await group.start(plane.run)
        await group.start(Door(where, {"status": once(status)}).run)
        found = await anyio.to_thread.run_sync(resolved, tmp_path, [plane.url])
        said = await examined(found, where)

        refused = said["accepted by a control plane"]
        assert (refused.verdict, refused.evidence) == ("fault", "leads with epoch 1")
        assert refused.fix == "so"
        assert "leader" not in said
        standby = said[f"control plane {plane.url}"]
        assert standby.evidence == "is a standby, and does not say of whom"
        group.cancel_scope.cancel()


@pytest.mark.parametrize("reachable", [True, False])
async def test_the_way_back(tmp_path: Path, reachable: bool) -> None:
    """T21: the control plane is asked to connect to a port of this node."""
    asked: list[Any] = []

    async def probe(request: Any) -> Any:
        asked.append(request)
        if not reachable:
            return {"reachable": False, "reason": "timed out"}
        async with await anyio.connect_tcp(request["address"], request["port"]):
            return {"reachable": True}

    where = tmp_path / "agent.sock"
    down = f"http://127.0.0.1:{free_port()}"
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [down])
    async with anyio.create_task_group() as group:
        await group.start(Door(where, {"probe": once(probe)}).run)
        said = (await examined(found, where))["reached from the control plane"]

        assert asked[0]["address"] == "127.0.0.1"
        assert 20000 <= asked[0]["port"] <= 20999
        assert said.verdict == ("ok" if reachable else "fault")
        assert reachable or "timed out" in said.evidence
        group.cancel_scope.cancel()


async def test_a_folder_that_is_missing_is_not_counted_as_found(tmp_path: Path) -> None:
    """Six of six were found where two were not there, and a cache that was missing was
    said to be a folder of models that can be written.
    """
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [DOWN])
    said = await examined(found, tmp_path / "no.sock")

    folders = said["directories and space"]
    assert folders.verdict == "ok"
    absent = f"2 of 3 folders are there; not yet: engines_dir {tmp_path}/engines"
    assert folders.evidence.startswith(absent)

    (tmp_path / "weights").rmdir()
    said = await examined(found, tmp_path / "no.sock")

    missing = said["directories and space"]
    assert missing.verdict == "warning"
    assert missing.evidence.startswith(
        f"weights_cache: {tmp_path}/weights: there is no"
    )
    assert "mount" in missing.fix
    cache = said["weights_cache"]
    assert "is not there yet, and can be made by" in cache.evidence


async def test_a_file_in_the_place_of_a_folder_is_one_fault(tmp_path: Path) -> None:
    """`chown it` was the advice."""
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [DOWN])
    (tmp_path / "weights").rmdir()
    (tmp_path / "weights").touch()

    said = await examined(found, tmp_path / "no.sock")

    fault = said["directories and space"]
    assert (fault.verdict, "is a file" in fault.evidence) == ("fault", True)
    assert "weights_cache" in fault.fix
    assert "weights_cache" not in said


async def test_a_node_without_an_engine_is_told_what_to_do(tmp_path: Path) -> None:
    """It was `ok`, and no replica could run there."""
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [DOWN])
    inventory = Inventory(found.config, replaced=NOTHING_BUILT)
    await inventory.once("builds", "models")

    said = {
        one.check: one for one in equipment.findings(inventory, ("builds", "models"))
    }

    assert said["engines"].verdict == "warning"
    assert "llmgw engines install" in said["engines"].fix
    assert said["models"].verdict == "ok"
    assert "fetched when it is wanted" in said["models"].evidence


async def test_with_a_wrong_file_what_was_not_looked_at_is_named() -> None:
    """What a wrong file says nothing of is looked at all the same."""
    fault = Fault(file="/a.toml", line=3, key="tls", what="is wrong", fix="mend it")

    said = [one async for one in examine_without(ConfigError((fault,)), {})]

    assert said[0] == Finding(
        check="configuration",
        verdict="fault",
        evidence="/a.toml:3: tls: is wrong",
        fix="mend it",
    )
    left = {one.check for one in said if one.verdict == "skipped"}
    assert left >= {"certificates", "control planes", "engines", "state_dir", "ports"}
    looked_at = {one.check for one in said if one.verdict != "skipped"}
    assert looked_at >= {"proxies", "GPUs and driver", "adapters", "memlock"}
    assert not left & looked_at


async def test_what_is_said_of_the_address_is_said_once(tmp_path: Path) -> None:
    found = await anyio.to_thread.run_sync(resolved, tmp_path, [DOWN])
    assert [one.key for one in found.warnings] == ["mgmt_addr"]

    said = await examined(found, tmp_path / "no.sock")

    assert said["configuration"].verdict == "ok"
    assert said["address"].verdict == "warning"


def test_what_is_advised_of_an_address_is_one_thing(tmp_path: Path) -> None:
    """Who wrote loopback was to leave it out, and who left it out was to write it."""
    written = resolved(tmp_path, [DOWN])
    text = Path(written.file).read_text().replace('mgmt_addr = "127.0.0.1"', "")
    Path(written.file).write_text(text)
    open_ = read(Path(written.file))

    assert [one.fix for one in address(written)] == [one.fix for one in address(open_)]


def test_a_cache_that_cannot_be_used_is_that_of_the_agent(tmp_path: Path) -> None:
    """T80: the doctor called the first of model_dirs the cache, which it had no right
    to write to; the agent fetches into the next.
    """
    first, second = tmp_path / "file", tmp_path / "second"
    first.touch(0o600)
    second.mkdir()
    file = tmp_path / "agent.toml"
    file.write_text(f'server = "{DOWN}"\nmodel_dirs = ["{first}", "{second}"]\n')

    assert read(file, without_files=True).config.weights_cache == str(second)


def test_the_choice_of_an_address_is_told(tmp_path: Path) -> None:
    [said] = address(resolved(tmp_path, [DOWN]))
    assert said.evidence.startswith("mgmt_addr 127.0.0.1: file: /")


def test_what_is_off_with_the_address_is_told_one_by_one(tmp_path: Path) -> None:
    """They were one line, with the fix of the first."""
    found = resolved(tmp_path, [DOWN], mgmt_interface="eth99")

    first, second = address(found)

    assert "loopback" in first.evidence
    assert 'no interface "eth99"' in second.evidence
    assert {first.verdict, second.verdict} == {"warning"}


async def test_without_certificates_nobody_is_looked_for(tmp_path: Path) -> None:
    """That a leader was not looked for was not said."""
    file = tmp_path / "agent.toml"
    nowhere = "".join(
        f'{name} = "{tmp_path}/none"\n' for name in ("cert_file", "key_file", "ca_file")
    )
    file.write_text(f'node_id = "n1"\nserver = "https://h:1"\n[tls]\n{nowhere}')
    found = await anyio.to_thread.run_sync(partial(read, file, without_files=True))

    said = await examined(found, tmp_path / "no.sock")

    assert said["certificates"].verdict == "fault"
    assert said["control plane https://h:1"].verdict == "skipped"
    assert said["leader"].verdict == "skipped"


async def test_a_folder_that_is_a_file_is_one_cause(tmp_path: Path) -> None:
    """It was told as a folder, and as a place of models that cannot be read."""
    (tmp_path / "model.gguf").touch()
    config = Config(servers=(), model_dirs=(f"{tmp_path}/model.gguf",))
    inventory = Inventory(config)
    await inventory.once("disks", "models")

    said = list(equipment.findings(inventory, ("disks", "models")))

    assert [(one.check, one.verdict) for one in said if one.verdict != "ok"] == [
        ("directories and space", "warning")
    ]


async def test_a_program_that_cannot_be_run_is_told_where_to_mend_it(
    tmp_path: Path,
) -> None:
    engines = Engines(llamacpp=LlamaCpp(path=f"{tmp_path}/none"))
    inventory = Inventory(Config(servers=(), engines=engines))
    await inventory.once("builds")

    said = [one.fix for one in equipment.findings(inventory, ("builds",))]

    assert "correct engines.KIND.path in the node's file" in said


def test_proxies_are_named_and_not_shown() -> None:
    said = host.proxies({"HTTPS_PROXY": "http://user:secret@p", "PATH": "/"})
    assert "HTTPS_PROXY" in said.evidence
    assert "secret" not in said.evidence


def test_device_nodes_that_are_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia0").touch()
    assert host.device_nodes(tmp_path).verdict == "ok"

    def shut(*_: object) -> bool:
        return False

    monkeypatch.setattr(host.os, "access", shut)  # root opens everything
    said = host.device_nodes(tmp_path)
    assert said.verdict == "fault"
    assert "nvidia0" in said.evidence


def test_folders_are_asked_of_the_one_who_can_hang() -> None:
    """T79: on a dead mount the doctor would sit in the same place as the scan."""
    disks: list[dict[str, Any]] = [
        {"use": "state_dir", "path": "/a", "writable": True},
        {"use": "weights_cache", "path": "/b", "writable": False},
        {"use": "weights_cache", "path": "/c", "reason": "Stale file handle"},
        {"use": "model_dirs", "path": "/d", "writable": False},
    ]

    said = list(host.writable(disks))

    assert [one.verdict for one in said] == ["ok", "fault", "fault"]
    assert "chown" in said[1].fix
    assert "Stale file handle" in said[2].evidence


@pytest.mark.parametrize(
    ("limit", "needed", "verdict"),
    [
        ("infinity", True, "ok"),
        ("65536", True, "warning"),
        ("65536", False, "ok"),
    ],
)
def test_locked_memory_is_that_of_the_unit(
    limit: str, needed: bool, verdict: str
) -> None:
    said = host.memlock(needed, {"LimitMEMLOCK": limit})

    assert said.verdict == verdict
    assert "llmgw-agent.service" in said.evidence
    assert "shell" in host.memlock(needed, {}).evidence


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"KillMode": "process", "Delegate": "yes"}, "ok"),
        ({"KillMode": "control-group", "Delegate": "yes"}, "fault"),
        ({"KillMode": "process", "Delegate": "no"}, "fault"),
        ({}, "skipped"),
    ],
)
def test_the_unit_leaves_engines_alone(said: dict[str, str], verdict: str) -> None:
    """T50: the default KillMode ends every engine with the agent."""
    assert host.unit(said).verdict == verdict


@pytest.mark.parametrize("state", ["loaded", "not-found"])
def test_the_unit_is_asked_of_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\necho LoadState={state}\necho KillMode=$1-$2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    said = host.settings(tmp_path)

    assert said.get("KillMode") == (
        "show-llmgw-agent.service" if state == "loaded" else None
    )
    assert host.settings(tmp_path / "none") == {}


def test_ports_that_are_listened_on_are_not_free(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    head = "  sl  local_address rem_address   st\n"
    rows = f"   0: 0100007F:{20000:04X} 00000000:0000 0A\n"
    rows += f"   1: 0100007F:{20001:04X} 00000000:0000 01\n"
    (tmp_path / "proc/net/tcp").write_text(head + rows)

    assert host.ports("20000-20001", tmp_path).evidence.startswith("1 of 2 are free")
    assert host.ports("20000-20000", tmp_path).verdict == "fault"


SECRETS = [
    'hf_token = "abc-very-secret"',
    "PASSWORD=abc-very-secret",
    '{"api_key": "abc-very-secret"}',
    "https://user:abc-very-secret@host/path",
    "--api-key abc-very-secret",
    "Authorization: Bearer abc-very-secret",
    "hf_abcveryxxsecret",
    "-----BEGIN RSA PRIVATE KEY-----\nabc-very-secret\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_bundle_has_no_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bundle.tar.gz"
    bundle.write(path, {"a.txt": f"before\n{text}\nafter", "b.json": {"x": [text]}})

    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        for name in ("a.txt", "b.json"):
            file = archive.extractfile(f"llmgw-doctor/{name}")
            assert file is not None
            content = file.read().decode()
            assert "very" not in content
    assert bundle.masked("chat_template = true") == "chat_template = true"
