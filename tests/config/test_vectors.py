"""Every vector of the original that a file alone decides."""

from pathlib import Path

import pytest

from llmgw.config.address import Complaint, with_scheme
from llmgw.config.load import examine, load
from llmgw.errors import ConfigError
from tests.oracle import vectors
from tests.oracle.vectors import CONTRADICTED, TIMES, Vector

ALL: list[Vector] = vectors.read("vectors")["vectors"]
NORMALIZE = [v for v in ALL if v["op"] == "normalize"]
ONE = [v for v in ALL if v["op"] == "normalize_one"]

# What only the machine can say; tests/agent/test_resolve.py has them.
MACHINE = {
    "node_id is not set and the hostname could not be read",
}


def ids(found: list[Vector]) -> list[str]:
    return [vector["id"] for vector in found]


@pytest.mark.parametrize("vector", ONE, ids=ids(ONE))
def test_a_scheme_is_put_in_front_or_judged(vector: Vector) -> None:
    """R5, R6."""
    answer = with_scheme(vector["input"]["addr"], vector["input"]["secure"])

    if vector["id"] in CONTRADICTED:
        assert isinstance(answer, Complaint)
        assert (
            answer.what
            == "tls is configured but HTTP://a is an http:// address; use https://"
        )
    elif "error" in vector:
        assert isinstance(answer, Complaint)
        assert answer.what == vector["error"]
    else:
        assert answer == vector["expect"]


REFUSED = [
    v
    for v in NORMALIZE
    if v.get("error") not in MACHINE
    and (vectors.wanted(v)[0] == "refuse" or v["id"] in CONTRADICTED)
]
ACCEPTED = [
    v
    for v in NORMALIZE
    if vectors.wanted(v)[0] != "refuse" and v["id"] not in CONTRADICTED
]


@pytest.mark.parametrize("vector", REFUSED, ids=ids(REFUSED))
def test_what_is_refused_is_refused_in_the_originals_words(
    vector: Vector, tmp_path: Path
) -> None:
    """C32 as well: there is no half of a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(vectors.save(vector, tmp_path))

    first = caught.value.faults[0]
    if "error" in vector and "better" not in vector:
        assert first.what == vector["error"]
    assert "\n" not in first.what
    assert first.what.isprintable()


@pytest.mark.parametrize("vector", ACCEPTED, ids=ids(ACCEPTED))
def test_what_is_accepted_is_normalised_as_the_original_does(
    vector: Vector, tmp_path: Path
) -> None:
    """R4-R9, R19-R25, and what C says of them."""
    outcome, expect = vectors.wanted(vector)
    path = vectors.save(vector, tmp_path)

    examined = examine(path)
    assert not examined.faults
    config = load(path).config

    assert list(config.servers) == expect["servers"]
    assert config.weights_cache == expect["weights_cache"]
    if vector["id"] != "weights.015":  # `/srv/./a` is `/srv/a` (C26)
        assert list(config.model_dirs) == expect["model_dirs"]
    for name in TIMES:
        assert getattr(config, name) == expect[name] / 10**9, name
    # C30: the original promised a default and left it empty.
    assert config.engines_dir == (expect["engines_dir"] or "/opt/llmgw/engines")
    assert config.labels == expect["labels"]
    assert config.discovery.prefer_nvml == expect["discovery"]["prefer_nvml"]
    for name in ("cert_file", "key_file", "ca_file"):
        assert (getattr(config.tls, name) or "") == expect["tls"][name]
    if outcome == "accept-with-warning" and vector["critic"][0] in PURE:
        assert any(W not in w.what for w in examined.warnings)


W = "is dialled without TLS"
# The warnings that a file alone gives; those of the machine are resolve's.
PURE = {"C15", "C16", "C26", "C31", "C38", "C4"}
