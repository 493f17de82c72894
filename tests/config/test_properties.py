"""What holds of every file, right or wrong."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.config.dump import dump
from llmgw.config.keys import Config
from llmgw.config.load import load
from llmgw.errors import ConfigError
from tests.config.strategies import JSON, right, spoilt

# The folder is one for all examples, and each writes the whole file anew.
shared = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)


def read(folder: Path, name: str, text: str | bytes) -> Config:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path).config


@shared
@given(written=right())
def test_what_is_accepted_is_dumped_and_accepted_again_as_the_same(
    written: dict[str, Any], tmp_path: Path
) -> None:
    """R3 as well: normalising what is normalised changes nothing."""
    config = read(tmp_path, "a.json", json.dumps(written))

    assert read(tmp_path, "b.toml", dump(config)) == config


@shared
@given(written=right())
def test_json_is_yaml(written: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(written)

    assert read(tmp_path, "a.yaml", text) == read(tmp_path, "b.json", text)


@shared
@given(written=st.one_of(spoilt(), JSON))
def test_a_wrong_file_has_faults_that_can_be_shown(
    written: Any, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(written))

    try:
        load(path)
    except ConfigError as error:
        for fault in error.faults:
            assert fault.what
            assert fault.file == str(path)
            str(fault).encode()
            assert "\n" not in fault.what + fault.key + fault.fix


TOKENS = st.sampled_from(
    (
        "[", "]", "[[", "]]", "{", "}", "=", ":", ",", ".", '"', "'", '"""', "#", "\n",
        "- ", "| ", "> ", "&a ", "*a", "!!str ", "%", "~", "? ", "<<: ", "\t", "\ufeff",
        "1", "0x1", "1e9", "nan", "true", "null", "2024-01-01", "12:30:00", "\\", "\\u",
        "servers", "server", "tls", "cp1", "a.b",
    )
)  # fmt: skip


@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json"])
@shared
@given(
    data=st.one_of(st.binary(max_size=200), st.lists(TOKENS, max_size=30).map("".join))
)
def test_no_bytes_make_it_raise_anything_but_its_own(
    name: str, data: str | bytes, tmp_path: Path
) -> None:
    with suppress(ConfigError):
        read(tmp_path, name, data)
