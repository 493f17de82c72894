"""A file is right, or everything that is wrong with it is said at once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmgw.config import keys
from llmgw.config.fields import known_keys
from llmgw.config.load import DEFAULT_FILE, Loaded, default_path, load
from llmgw.errors import ConfigError, Fault

TLS = 'tls = { cert_file = "/c", key_file = "/k", ca_file = "/a" }'


def written(folder: Path, text: str, name: str = "agent.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def faults(folder: Path, text: str, name: str = "agent.toml") -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text, name))
    return caught.value.faults


def accepted(folder: Path, text: str, name: str = "agent.toml") -> Loaded:
    return load(written(folder, text, name))


def test_the_smallest_file_has_every_default(tmp_path: Path) -> None:
    config = accepted(tmp_path, 'servers = ["cp1:7443"]').config

    assert config == keys.Config(
        servers=("http://cp1:7443",),
        model_dirs=("/var/lib/llmgw-weights",),
        weights_cache="/var/lib/llmgw-weights",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.toml",
            'server = "cp1"\nservers = ["cp2"]\nlabels.rack = "a1"\n'
            'heartbeat_interval = "1m30s"\n[weights]\ncache_limit = "2TiB"\n'
            '[[fabrics]]\nname = "ib"\nhcas = ["mlx5_0"]\nports = [1]\n',
        ),
        (
            "a.yaml",
            "server: cp1\nservers: [cp2]\nlabels: {rack: a1}\n"
            "heartbeat_interval: 1m30s\nweights:\n  cache_limit: 2TiB\n"
            "fabrics:\n- name: ib\n  hcas: [mlx5_0]\n  ports: [1]\nnode_id:\n",
        ),
        (
            "a.json",
            json.dumps(
                {
                    "server": "cp1",
                    "servers": ["cp2"],
                    "labels": {"rack": "a1"},
                    "heartbeat_interval": "1m30s",
                    "weights": {"cache_limit": 2**41},
                    "fabrics": [{"name": "ib", "hcas": ["mlx5_0"], "ports": [1]}],
                    "node_id": None,
                },
                indent="\t",
            ),
        ),
    ],
)
def test_the_three_languages_say_the_same(name: str, text: str, tmp_path: Path) -> None:
    loaded = accepted(tmp_path, text, name)

    assert loaded.config.servers == ("http://cp1", "http://cp2")
    assert loaded.config.labels == {"rack": "a1"}
    assert loaded.config.heartbeat_interval == 90.0
    assert loaded.config.weights.cache_limit == 2**41
    assert loaded.config.fabrics == (
        keys.Fabric(name="ib", hcas=("mlx5_0",), ports=(1,)),
    )
    assert loaded.config.node_id is None
    assert loaded.places["fabrics[0].hcas[0]"] > loaded.places["server"]


def test_five_faults_are_five_messages_the_originals_first(tmp_path: Path) -> None:
    found = faults(
        tmp_path,
        "heartbeat_interval = 5\n"
        'servers = ["cp1", "ftp://cp2"]\n'
        'node_id = " gpu-07"\n'
        "sttae_dir = '/x'\n"
        "[tls]\n"
        "cert_file = '/c'\n",
    )

    assert [(fault.line, fault.key, fault.what) for fault in found] == [
        (
            5,
            "tls",
            "tls needs cert_file, key_file and ca_file together; missing key_file, "
            "ca_file",
        ),
        (
            2,
            "servers[1]",
            'server "ftp://cp2" must be an http:// or https:// address',
        ),
        (
            1,
            "heartbeat_interval",
            'must be a duration with its unit, such as "5s", not 5',
        ),
        (3, "node_id", '" gpu-07" has white space around it'),
        (4, "sttae_dir", "no such setting"),
    ]
    assert [fault.fix for fault in found[2:]] == [
        'write "5s" if seconds are meant',
        "remove it",
        "did you mean state_dir?",
    ]


def test_server_is_judged_before_servers_wherever_it_stands(tmp_path: Path) -> None:
    """R4, C34."""
    found = faults(tmp_path, "servers = ['ftp://b', 'ftp://c']\nserver = 'ftp://a'\n")

    assert [fault.key for fault in found] == ["server", "servers[0]", "servers[1]"]


@pytest.mark.parametrize(
    ("text", "line", "key", "fix"),
    [
        (
            'server = "https://a"\n[tsl]\ncert_file = "/c"',
            2,
            "tsl",
            "did you mean tls?",
        ),
        ('sevrers = ["cp1"]', 1, "sevrers", "did you mean servers?"),
        (
            'server = "a"\nheartbeat_intervall = "5s"',
            2,
            "heartbeat_intervall",
            "did you mean heartbeat_interval?",
        ),
        (
            'server = "a"\n[tls]\ncertfile = "/c"',
            3,
            "tls.certfile",
            "did you mean cert_file?",
        ),
        (
            'server = "a"\n[tls]\nkey_file = "/k"\nca_file = "/a"\ncertfile = "/c"',
            5,
            "tls.certfile",
            "did you mean cert_file?",
        ),
        (
            'server = "a"\nheartbeatInterval = "5s"',
            2,
            "heartbeatInterval",
            "did you mean heartbeat_interval?",
        ),
    ],
)
def test_a_misspelt_key_is_one_fault_with_the_nearest_key(
    text: str, line: int, key: str, fix: str, tmp_path: Path
) -> None:
    """T44. What is missing because of the typo is not said as well."""
    found = faults(tmp_path, text)

    assert [(fault.line, fault.key, fault.fix) for fault in found] == [(line, key, fix)]


@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        (
            'server = "a"\ncert_file = "/c"',
            "cert_file",
            "it belongs under tls.cert_file or weights.mirrors[].cert_file",
        ),
        (
            'server = "a"\n[tls]\nport_range = "1-2"',
            "tls.port_range",
            "it belongs under supervisor.port_range",
        ),
        (
            'server = "a"\n[weights]\nmodel_dirs = ["/a"]',
            "weights.model_dirs",
            "it belongs at the top: model_dirs",
        ),
    ],
)
def test_a_key_in_the_wrong_section_is_told_where_it_belongs(
    text: str, key: str, fix: str, tmp_path: Path
) -> None:
    """T45."""
    (found,) = faults(tmp_path, text)

    assert found.key == key
    assert found.what == "no such setting here"
    assert found.fix == fix


def test_unknown_keys_may_be_let_pass_but_never_under_tls(tmp_path: Path) -> None:
    """T46: a newer file on an older agent; a misspelt certificate is still refused."""
    path = written(tmp_path, 'server = "a"\nfuture = 1\n[link]\nnewer = "5s"\n')

    loaded = load(path, allow_unknown_keys=True)

    assert [
        warning.key for warning in loaded.warnings if "setting" in warning.what
    ] == [
        "future",
        "link.newer",
    ]
    for text in ('[tls]\ncerts = "/c"\n', "[tsl]\na = 1\n", 'cert_file = "/c"\n'):
        path = written(tmp_path, f'server = "a"\n{text}')
        with pytest.raises(ConfigError):
            load(path, allow_unknown_keys=True)


def one_letter_off(word: str) -> set[str]:
    letters = "qe"
    found: set[str] = set()
    for at in range(len(word)):
        found.add(word[:at] + word[at + 1 :])
        found |= {word[:at] + letter + word[at + 1 :] for letter in letters}
        found |= {word[:at] + letter + word[at:] for letter in letters}
        if at:
            swapped = word[at] + word[at - 1]
            found.add(word[: at - 1] + swapped + word[at + 1 :])
    return found - {word, ""}


ALL = {".".join(path): path for path in known_keys()} | {"server": ("server",)}


@pytest.mark.parametrize("name", ALL)
def test_every_key_one_letter_off_is_refused(name: str, tmp_path: Path) -> None:
    """T47. And the key that was meant is named, where no other is as near."""
    *section, last = ALL[name]
    siblings = {other[-1] for other in ALL.values() if list(other[:-1]) == section}
    wrongs = sorted(one_letter_off(last) - siblings)
    inner: Any = dict.fromkeys(wrongs, "x")
    for part in reversed(section):
        inner = [inner] if part == "*" else {part: inner}

    text = json.dumps({"server": "a"} | inner)
    found = {fault.key: fault for fault in faults(tmp_path, text, "a.json")}

    named = 0
    for wrong in wrongs:
        key = ".".join([*section, wrong]).replace(".*", "[0]")
        assert key in found, f"{key} was let pass"
        named += f"did you mean {last}?" == found[key].fix
    assert named >= len(wrongs) * 0.8


@pytest.mark.parametrize(
    ("name", "content", "what", "line"),
    [
        ("a.toml", b"", "server is required", None),
        ("a.toml", b"\x7fELF\x02\x01\x00\xff", "is not text: byte 0xff", 1),
        ("a.toml", b"a = 1\nb = \n", "is not TOML: invalid value", 2),
        ("a.toml", b"a = [1,\n", "the list that begins here is not closed", 1),
        ("a.yaml", b"a: [1\nb: 2\n", "is not YAML: ", 2),
        ("a.yaml", b"- a\n", "holds no keys", None),
        ("a.yaml", b"server: a\nserver: b\n", 'has the key "server" twice', 2),
        ("a.yaml", b"a: &x 1\nb: *x\n", "has an alias", 1),
        ("a.yaml", b"a: !!python/name:os.system\n", "has the tag", 1),
        ("a.json", b'{"server": "a",\n "server": "b"}', 'the key "server" twice', 2),
        ("a.json", b'{"server": NaN}', "is not JSON: NaN is no number", None),
        ("a.json", b"<html>", "is not JSON: expecting value", 1),
        ("a.json", b"[" * 100_000, "is nested too deeply", None),
        ("a.toml", b"a = " + b"[" * 100_000, "is nested too deeply", None),
        ("a.yaml", b"a: " + b"[" * 100_000, "is nested too deeply", None),
        ("a.toml", b"# " + b"x" * 2_000_000, "is larger than 1 MiB", None),
        ("a.conf", b"", 'is named "a.conf"', None),
    ],
)
def test_what_is_no_configuration_is_said_to_be_none(
    name: str, content: bytes, what: str, line: int | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load(path)

    (fault,) = caught.value.faults
    assert what in fault.what
    assert fault.line == line
    assert fault.file == str(path)
    assert caught.value.exit_code == 78


def test_a_file_that_is_not_there_or_a_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    for name in ("dir.toml", "folder"):
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match="cannot be read: Is a directory") as said:
            load(tmp_path / name)
        assert said.value.fix == "name the file in it"
    # What it is called matters only of one that is there.
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none")


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Nor does a reload wait: an agent that did heard no signal any more."""
    os.mkfifo(tmp_path / "a.toml")

    with pytest.raises(ConfigError, match="cannot be read: is not a regular file"):
        load(tmp_path / "a.toml")


def test_a_secret_is_not_shown_in_what_is_refused(tmp_path: Path) -> None:
    """C6."""
    found = faults(
        tmp_path,
        f"servers = ['http://admin:s3cret@cp1', 'ftp://s3cret@x']\n{TLS}\n"
        "metrics.listen = 5\n"
        "[engines.vllm]\nenv = { HF_TOKEN = 986753 }\nargs = [986753]\n"
        "[weights]\nhf_endpoint = 'ftp://me:s3cret@x'\n",
    )

    text = "\n".join(map(str, found))
    assert len(found) == 6
    assert "s3cret" not in text
    assert "986753" not in text
    assert "tls is configured but http://admin:***@cp1 is an http:// address" in text


def test_a_directory_in_two_spellings_is_one(tmp_path: Path) -> None:
    """C26: the first spelling stays; `..` may pass through a link and is another."""
    config = accepted(
        tmp_path,
        "server = 'a'\nmodel_dirs = ['/a/', '//a/.', '/b', '/b/../a', '/A']\n"
        "weights_cache = '/b/'\n",
    ).config

    assert config.model_dirs == ("/a/", "/b", "/b/../a", "/A")
    assert config.weights_cache == "/b/"


def test_empty_text_counts_as_not_written_where_a_key_may_be_left_out(
    tmp_path: Path,
) -> None:
    """R4, R10, R19."""
    keys_of_text = ("server", "node_id", "mgmt_addr", "state_dir", "weights_cache")
    text = "".join(f'{name} = ""\n' for name in keys_of_text)

    config = accepted(tmp_path, f"servers = ['a']\n{text}").config

    assert config == accepted(tmp_path, "servers = ['a']").config


def test_only_one_variable_is_read_and_only_for_the_path(tmp_path: Path) -> None:
    assert default_path({"LLMGW_CONFIG": "/x/y.toml"}) == Path("/x/y.toml")
    assert default_path({"LLMGW_SERVERS": "a"}) == Path(DEFAULT_FILE)


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("labels = { '' = 'x' }", 'labels.""', "has an empty name"),
        ("labels.a = 1", "labels.a", "must be text in quotes, not 1"),
        ("[[fabrics]]\nname = 'a'", "fabrics[0].hcas", "is required"),
        (
            "[[fabrics]]\nname='a'\nhcas=['m']\n[[fabrics]]\nname='b'\nhcas=['m']",
            "fabrics[1].hcas[0]",
            '"m" is on the fabric "a" already',
        ),
        (
            "supervisor.port_range = '30000-20000'",
            "supervisor.port_range",
            '"30000-20000" ends before it begins',
        ),
        (
            "supervisor.port_range = '20000'",
            "supervisor.port_range",
            '"20000" is not written as it must be',
        ),
        (
            "supervisor.backend = 'sytemd'",
            "supervisor.backend",
            'must be one of "auto", "process", "systemd", not "sytemd"',
        ),
        (
            "supervisor.restart_base = '2m'",
            "supervisor.restart_base",
            "restart_max 1m is less than restart_base 2m",
        ),
        ("metrics.listen = '9464'", "metrics.listen", '"9464" is not HOST:PORT'),
        (
            "weights.quiet_hours = '25:00-26:00'",
            "weights.quiet_hours",
            '"25:00-26:00" has an hour after 23',
        ),
        (
            "weights.connections = 0",
            "weights.connections",
            "must be at least 1 and at most 64, not 0",
        ),
        (
            "weights.connections = true",
            "weights.connections",
            "must be a whole number, not true",
        ),
        ("model_dirs = '/a'", "model_dirs", 'must be a list, not "/a"'),
        (
            "discovery = 5",
            "discovery",
            "must be a table of keys, not 5",
        ),
        (
            "link.dial_timeout = '5'",
            "link.dial_timeout",
            '"5" has no unit; write "5s", "1m30s" or "500ms"',
        ),
        (
            "supervisor.log_max_bytes = '64 MB'",
            "supervisor.log_max_bytes",
            '"64 MB" is not a size such as "64MiB" or "8GB"',
        ),
        (
            "weights.mirrors = [{ url = 'https://m', cert_file = '/c' }]",
            "weights.mirrors[0]",
            "needs cert_file and key_file together; missing key_file",
        ),
        ("weights.mirrors = [{ url = '' }]", "weights.mirrors[0].url", "is empty"),
        ("server = 5", "server", "must be text in quotes, not 5"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_the_operators_words(
    text: str, key: str, what: str, tmp_path: Path
) -> None:
    servers = "" if text.startswith("server =") else "servers = ['a']\n"

    (found,) = faults(tmp_path, f"{servers}{text}\n")

    assert (found.key, found.what) == (key, what)


def test_any_other_server_without_its_program_is_warned_of(tmp_path: Path) -> None:
    """It can run nothing, which the first replica would be the first to say."""
    text = "servers = ['127.0.0.1']\n[engines.command]\nenabled = true\n"

    [warning] = accepted(tmp_path, text).warnings
    named = accepted(tmp_path, f"{text}path = '/opt/serve'\n").warnings

    assert (warning.key, warning.line) == ("engines.command", 2)
    assert warning.fix == "set engines.command.path"
    assert named == ()
