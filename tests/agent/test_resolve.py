"""What the machine fills in, and what it says against a file."""

from pathlib import Path

import pytest

from llmgw import pki
from llmgw.agent.resolve import Resolved, read
from llmgw.config.load import load
from llmgw.errors import ConfigError, Fault
from tests.fakes.machine import FakeMachine
from tests.oracle import vectors
from tests.oracle.vectors import CONTRADICTED, Vector

DATA = vectors.read("vectors")
ENVS = DATA["envs"]
NORMALIZE: list[Vector] = [v for v in DATA["vectors"] if v["op"] == "normalize"]

PLAIN = "is dialled without TLS"


def machine(name: str = "std") -> FakeMachine:
    hostname = ENVS[name].get("hostname", "node-a")
    return FakeMachine(ENVS["std"], hostname)


def kept(vector: Vector) -> bool:
    return vectors.wanted(vector)[0] != "refuse" and vector["id"] not in CONTRADICTED


@pytest.mark.parametrize(
    "vector", [v for v in NORMALIZE if kept(v)], ids=lambda v: v["id"]
)
def test_the_machine_fills_in_as_the_original_does(
    vector: Vector, tmp_path: Path
) -> None:
    """R10-R18, and what C says of them."""
    path = vectors.save(vector, tmp_path)
    here = machine(vector["env"])

    found = read(path, here, without_files=True)

    _, expect = vectors.wanted(vector)
    config = found.config
    if vector["id"] not in ("server.raw.056", "server.raw.057"):  # mapped first (C38)
        assert (config.mgmt_addr or "") == expect["mgmt_addr"]
        assert (config.mgmt_interface or "") == expect["mgmt_interface"]
    assert config.node_id == expect["node_id"]
    assert config.hostname == expect["hostname"]
    # A given address needs no look-up (R12), and nothing else is ever looked up.
    if not vector["asked"].get("addr_toward") and "example" not in str(
        config.mgmt_addr
    ):
        assert here.asked == []


@pytest.mark.parametrize(
    "vector",
    [v for v in NORMALIZE if vectors.wanted(v)[0] == "accept-with-warning"],
    ids=lambda v: v["id"],
)
def test_what_is_odd_is_said(vector: Vector, tmp_path: Path) -> None:
    found = read(
        vectors.save(vector, tmp_path), machine(vector["env"]), without_files=True
    )

    assert [w for w in found.warnings if PLAIN not in w.what]


@pytest.mark.parametrize(
    "vector",
    [v for v in NORMALIZE if "hostname could not be read" in v.get("error", "")],
    ids=lambda v: v["id"],
)
def test_no_name_is_a_fault_and_is_told_first(vector: Vector, tmp_path: Path) -> None:
    """R10, C34: with the faults of the file, in the original's order."""
    faults = refused(vectors.save(vector, tmp_path), machine(vector["env"]))

    assert faults[0].what == vector["error"]
    assert len(faults) == 1 + sum(
        vector["input"].get(name, 0) < 0
        for name in ("heartbeat_interval", "reconnect_base")
    )


def refused(
    path: Path, here: FakeMachine, *, without_files: bool = True
) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        read(path, here, without_files=without_files)
    return caught.value.faults


def resolved(tmp_path: Path, text: str, *, without_files: bool = True) -> Resolved:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return read(path, machine(), without_files=without_files)


def test_an_international_name_is_mapped_before_the_way_is_asked(
    tmp_path: Path,
) -> None:
    """C38."""
    for text in ("cp1.example。", "１０.20.0.1"):  # noqa: RUF001 -- as somebody typed it
        found = resolved(tmp_path, f'server = "{text}"')

        assert found.config.mgmt_addr == "10.20.0.5"
        assert found.config.mgmt_interface == "eth0"


def test_each_value_says_where_it_is_from(tmp_path: Path) -> None:
    found = resolved(tmp_path, '\nserver = "cp2.example"\nlabels = {}\n')

    origin = found.origin
    assert origin["servers"].detail == f"{tmp_path}/agent.toml:2"
    assert origin["labels"].source == "file"
    assert origin["mgmt_addr"].source == "probe"
    assert "on the way to http://cp2.example" in origin["mgmt_addr"].detail
    assert origin["mgmt_interface"].detail == "holds 10.30.0.5"
    assert origin["node_id"].detail == "the host name"
    assert origin["heartbeat_interval"].source == "default"
    assert "CPUs allowed here" in origin["engines.llamacpp.threads"].detail
    assert found.written.mgmt_addr is None
    assert found.written == load(tmp_path / "agent.toml").config


def test_a_name_that_nobody_knows_gives_way_to_the_next_server(tmp_path: Path) -> None:
    """T36: the next server is asked, and no interface is named that is not there."""
    found = resolved(tmp_path, 'servers = ["nope.invalid", "10.20.0.1"]')

    assert found.config.mgmt_addr == "10.20.0.5"
    assert found.config.mgmt_interface == "eth0"
    assert any("nope.invalid" in one.what for one in found.warnings)
    here = FakeMachine({**ENVS["std"], "interfaces": [], "routes": []}, "node-a")
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text('servers = ["nope.invalid"]')
    alone = read(nowhere, here, without_files=True)
    assert alone.config.mgmt_addr is None
    assert alone.config.mgmt_interface is None
    assert any("there is no eth0" in one.what for one in alone.warnings)


def test_a_secret_is_not_shown_in_where_it_is_from(tmp_path: Path) -> None:
    """C6."""
    found = resolved(tmp_path, 'server = "me:s3cret@cp2.example"')

    assert "s3cret" not in str(found.origin) + str(found.warnings)


def test_a_name_that_is_set_stays_when_the_host_is_named_anew(tmp_path: Path) -> None:
    """T42: and one that is not set follows the host, which is the second worker."""
    text = 'server = "cp2.example"\n'
    (tmp_path / "set.toml").write_text(text + 'node_id = "n1"\n')
    (tmp_path / "unset.toml").write_text(text)
    before, after = (FakeMachine(ENVS["std"], name) for name in ("old", "new"))

    def named(file: str, here: FakeMachine) -> tuple[str | None, str | None]:
        config = read(tmp_path / file, here, without_files=True).config
        return config.node_id, config.hostname

    assert named("set.toml", before) == ("n1", "old")
    assert named("set.toml", after) == ("n1", "new")
    assert named("unset.toml", after) == ("new", "new")


def test_a_host_named_anew_is_held_against_its_certificate(tmp_path: Path) -> None:
    """T42: both names are said, and how the node stays what it was."""
    pki.init(tmp_path)
    made = pki.issue(tmp_path, "old")
    path = tmp_path / "agent.toml"
    path.write_text(
        'server = "https://cp2.example"\n'
        f'[tls]\ncert_file = "{made.cert_file}"\nkey_file = "{made.key_file}"\n'
        f'ca_file = "{made.ca_file}"\n'
    )

    read(path, FakeMachine(ENVS["std"], "old"))
    (fault,) = refused(path, FakeMachine(ENVS["std"], "new"), without_files=False)

    assert fault.key == "node_id"
    assert 'is "new"' in fault.what
    assert 'is for "old"' in fault.what
    assert 'set node_id = "old"' in fault.fix


def test_a_read_only_directory_is_not_what_weights_land_in(tmp_path: Path) -> None:
    """T80."""
    path = tmp_path / "agent.toml"
    path.write_text('server = "10.20.0.1"\nmodel_dirs = ["/lustre", "/nvme"]\n')
    here = machine()
    here.read_only = {"/lustre"}

    found = read(path, here)

    assert found.config.weights_cache == "/nvme"
    assert found.config.model_dirs == ("/lustre", "/nvme")
    assert "/lustre cannot be written to" in found.origin["weights_cache"].detail
    here.read_only = {"/lustre", "/nvme"}
    found = read(path, here)
    assert found.config.weights_cache == "/lustre"
    (warning,) = [one for one in found.warnings if one.key == "weights_cache"]
    assert "none of model_dirs can be written to" in warning.what
    path.write_text(path.read_text() + 'weights_cache = "/lustre"\n')
    assert read(path, here).config.weights_cache == "/lustre"


@pytest.fixture
def site(tmp_path: Path) -> pki.Issued:
    """Certificates of the project's own making, for the node gpu-07."""
    pki.init(tmp_path)
    return pki.issue(tmp_path, "gpu-07")


def with_tls(issued: pki.Issued, more: str = "") -> str:
    return (
        f'server = "10.20.0.1"\n{more}\n[tls]\ncert_file = "{issued.cert_file}"\n'
        f'key_file = "{issued.key_file}"\nca_file = "{issued.ca_file}"\n'
    )


def test_the_certificate_names_this_node(site: pki.Issued, tmp_path: Path) -> None:
    """C24, C36."""
    path = tmp_path / "agent.toml"
    path.write_text(with_tls(site, 'node_id = "gpu-07"'))
    read(path, machine())
    path.write_text(with_tls(site))

    (fault,) = refused(path, machine(), without_files=False)

    assert fault.key == "node_id"
    assert f'is "node-a" and the certificate {site.cert_file} is for "gpu-07"' in (
        fault.what
    )
    assert read(path, machine(), without_files=True).config.node_id == "node-a"


def test_a_certificate_file_that_is_not_there_is_named(
    site: pki.Issued, tmp_path: Path
) -> None:
    """C36."""
    site.key_file.unlink()
    path = tmp_path / "agent.toml"
    path.write_text(with_tls(site, 'node_id = "gpu-07"'))

    (fault,) = refused(path, machine(), without_files=False)

    assert fault.key == "tls.key_file"
    assert fault.line == 5
    assert str(site.key_file) in fault.what
