"""What the NixOS module makes of a configuration, and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.nix.nix import ROOT, evaluate

CASES: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/data/server-cases.json").read_text()
)
TLS = {
    "cert_file": "/run/secrets/node.crt",
    "key_file": "/run/secrets/node.key",
    "ca_file": "/run/secrets/ca.crt",
}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"heartbeatInterval": "5s"}, "settings.heartbeatInterval' does not exist"),
    ({"heartbeat_interval": "5 sec"}, "settings.heartbeat_interval' is not of"),
    ({"heartbeat_interval": 5}, "settings.heartbeat_interval' is not of type"),
    ({"tls": {"cert_fiel": "/a"}}, "settings.tls.cert_fiel' does not exist"),
    ({"supervisor": {"backend": "docker"}}, "supervisor.backend' is not of type"),
    ({"fabrics": [{"hcas": []}]}, "fabrics.0.name' was accessed but has no value"),
    ({"weights": {"cache_limit": "8 gigs"}}, "weights.cache_limit' is not of type"),
]


def module(state: Path, settings: dict[str, Any], **beside: Any) -> Any:
    agent = {"enable": True, "settings": settings, **beside}
    return evaluate(state, settings={"services": {"llmgw-agent": agent}})


def refusal(state: Path, settings: dict[str, Any], **beside: Any) -> str:
    with pytest.raises(RuntimeError) as raised:
        module(state, settings, **beside)
    return str(raised.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_assertions_say_what_the_agent_would(
    case: dict[str, Any], tmp_path: Path
) -> None:
    made = module(tmp_path, case["settings"])

    assert made["refused"] == ([case["option"]] if "option" in case else [])


def test_almost_nothing_is_enough(tmp_path: Path) -> None:
    made = module(tmp_path, {"servers": ["cp1:7443"]})

    assert made["refused"] == []
    assert made["warnings"] == []
    # the one default that differs is written, all others are left to the agent
    assert made["file"] == {
        "servers": ["cp1:7443"],
        "engines_dir": "/var/lib/llmgw/engines",
    }
    assert "llmgw check " in made["checkedBy"]


def test_no_null_is_written_in_lists_of_tables_neither(tmp_path: Path) -> None:
    settings = {
        "servers": ["cp1:7443"],
        "weights": {"mirrors": [{"url": "https://mirror", "ca_file": None}]},
        "fabrics": [{"name": "ib0", "hcas": ["mlx5_0"], "ports": None}],
        "engines": {"vllm": {"enabled": False}},
        "node_id": None,
    }

    made = module(tmp_path, settings)

    assert "null" not in json.dumps(made["file"])
    assert made["file"]["weights"] == {"mirrors": [{"url": "https://mirror"}]}
    assert made["file"]["fabrics"] == [{"name": "ib0", "hcas": ["mlx5_0"]}]
    assert made["file"]["engines"] == {"vllm": {"enabled": False}}


def test_secrets_go_through_credentials(tmp_path: Path) -> None:
    mirror = {"url": "https://m", "cert_file": "/s/m.crt", "key_file": "/s/m.key"}
    settings = {"servers": ["cp1"], "tls": TLS, "weights": {"mirrors": [mirror]}}

    made = module(tmp_path, settings)

    assert made["file"]["tls"] == {
        key: f"/run/credentials/llmgw-agent.service/tls.{key}" for key in TLS
    }
    unit = made["units"]["llmgw-agent"]["serviceConfig"]
    assert "tls.key_file:/run/secrets/node.key" in unit["LoadCredential"]
    assert "weights.mirrors.0.key_file:/s/m.key" in unit["LoadCredential"]
    # a renewed file is handed over without anybody's doing
    watched = made["paths"]["llmgw-agent-certificates"]["pathConfig"]["PathChanged"]
    assert set(TLS.values()) | {"/s/m.crt", "/s/m.key"} == set(watched)


def test_a_secret_in_the_store_is_refused(tmp_path: Path) -> None:
    key = f"{tmp_path}/store/aaaa-node.key"

    said = refusal(tmp_path, {"servers": ["cp1"], "tls": TLS | {"key_file": key}})

    assert "settings.tls.key_file' is not of type" in said


@pytest.mark.parametrize(("settings", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_no_key_is_and_no_value_can_be_is_refused_by_name(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refusal(tmp_path, {"servers": ["cp1"], **settings})


def test_the_firewall_is_opened_on_the_named_interface_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "servers": ["cp1"],
        "supervisor": {"port_range": "21000-21099"},
        "metrics": {"listen": "[::]:9105"},
    }
    ports = {
        "allowedTCPPortRanges": [{"from": 21000, "to": 21099}],
        "allowedTCPPorts": [9105],
    }

    everywhere = module(tmp_path, settings, openFirewall=True)["firewall"]
    settings["mgmt_interface"] = "ens3"
    one = module(tmp_path, settings, openFirewall=True)["firewall"]
    closed = module(tmp_path, settings)["firewall"]

    assert everywhere == ports
    assert one == {"interfaces": {"ens3": ports}}
    assert closed == {}


def test_engines_outlive_the_agent_in_every_ending_of_the_unit(tmp_path: Path) -> None:
    """T50: the default KillMode kills what took twenty minutes to load."""
    unit = module(tmp_path, {"servers": ["cp1"]})["units"]["llmgw-agent"]
    service = unit["serviceConfig"]

    assert service["KillMode"] == "process"
    assert service["RuntimeDirectoryPreserve"] is True
    assert "DynamicUser" not in service
    assert unit["stopIfChanged"] is False
    # never gives up, except on a file that is wrong
    assert unit["unitConfig"]["StartLimitIntervalSec"] == 0
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", 78)


def test_the_agent_may_manage_engine_units_and_nothing_else(tmp_path: Path) -> None:
    made = module(tmp_path, {"servers": ["cp1"]})
    process = module(
        tmp_path, {"servers": ["cp1"], "supervisor": {"backend": "process"}}
    )

    pattern = re.search(r"/(\^llmgw-engine@.*\$)/", made["polkit"])
    assert pattern
    allowed = re.compile(pattern[1].replace("\\.", r"\."))
    assert allowed.search("llmgw-engine@chat-0.service")
    for name in (
        "llmgw-engine@.service",
        "llmgw-engine@x.service\n",
        "xllmgw-engine@a.service",
        "llmgw-engine@../a.service",
        "llmgw-agent.service",
    ):
        assert not re.fullmatch(allowed, name)
    assert process["polkit"] == ""
    assert "llmgw-engine@" not in process["units"]


def test_engine_packages_become_the_engines_folder(tmp_path: Path) -> None:
    made = evaluate(
        tmp_path,
        settings={
            "services": {
                "llmgw-agent": {"enable": True, "settings": {"servers": ["a"]}}
            }
        },
        files=[str(ROOT / "tests/nix/with-engines.nix")],
    )

    assert made["file"]["engines_dir"] == "/made/llmgw-engines"


def test_a_home_directory_of_models_is_warned_of(tmp_path: Path) -> None:
    made = module(tmp_path, {"servers": ["a"], "model_dirs": ["/home/me", "/homes"]})

    (warning,) = made["warnings"]
    assert "/home/me lies in a home directory" in warning


def test_the_image_names_no_node_and_finds_its_control_plane_by_name(
    tmp_path: Path,
) -> None:
    """One image for the fleet: the site says who each machine is."""
    made = evaluate(tmp_path, files=[str(ROOT / "nixos-module/node-image.nix")])

    assert made["refused"] == []
    assert made["hostName"] == ""
    assert "node_id" not in made["file"]
    assert made["file"]["servers"] == ["llmgw-control:7443"]
    assert made["firewall"] != {}
