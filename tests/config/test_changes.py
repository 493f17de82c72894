"""What SIGHUP changes at once, and what it names as waiting for a restart."""

from pathlib import Path

import pytest

from llmgw.config import keys
from llmgw.config.changes import changes
from llmgw.config.keys import Config
from llmgw.config.load import load

BEFORE = 'servers = ["cp1"]\nnode_id = "a"\n'


def config(folder: Path, text: str) -> Config:
    path = folder / "agent.toml"
    path.write_text(text)
    return load(path).config


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('labels = { rack = "a2" }', "labels"),
        ('heartbeat_interval = "7s"', "heartbeat_interval"),
        ('reconnect_base = "2s"', "reconnect_base"),
        ('adopt_ready_timeout = "2m"', "adopt_ready_timeout"),
        ("engines.llamacpp.threads = 4", "engines.llamacpp.threads"),
        ('link.fail_back_interval = "1m"', "link.fail_back_interval"),
        ('discovery.interval = "2m"', "discovery.interval"),
    ],
)
def test_a_live_key_needs_no_restart(more: str, key: str, tmp_path: Path) -> None:
    found = changes(config(tmp_path, BEFORE), config(tmp_path, f"{BEFORE}{more}\n"))

    assert found.live == (key,)
    assert found.needs_restart == ()


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('hostname = "b"', "hostname"),
        ('state_dir = "/b"', "state_dir"),
        ('supervisor.backend = "systemd"', "supervisor.backend"),
        ('engines.vllm.path = "/v"', "engines.vllm.path"),
        ('metrics.listen = ":9464"', "metrics.listen"),
    ],
)
def test_what_needs_a_restart_is_named(more: str, key: str, tmp_path: Path) -> None:
    found = changes(config(tmp_path, BEFORE), config(tmp_path, f"{BEFORE}{more}\n"))

    assert found.needs_restart == (key,)
    assert found.live == ()
    assert not found.link


def test_the_same_file_changes_nothing(tmp_path: Path) -> None:
    again = changes(config(tmp_path, BEFORE), config(tmp_path, BEFORE))

    assert (again.live, again.needs_restart, again.link) == ((), (), False)


def test_another_address_is_announced_on_a_new_link() -> None:
    """Found anew or written anew: the control plane is told, the agent goes on."""
    old = keys.Config(servers=("http://a",), mgmt_addr="10.20.0.5")

    found = changes(old, keys.Config(servers=("http://a",), mgmt_addr="10.30.0.5"))

    assert found.live == ("mgmt_addr",)
    assert found.link


def test_new_servers_and_certificates_are_a_new_link() -> None:
    old = keys.Config(servers=("http://a",))
    tls = keys.Tls(cert_file="/c", key_file="/k", ca_file="/a")

    found = changes(old, keys.Config(servers=("https://a",), tls=tls))

    assert set(found.live) == {
        "servers",
        "tls.cert_file",
        "tls.key_file",
        "tls.ca_file",
    }
    assert found.link
