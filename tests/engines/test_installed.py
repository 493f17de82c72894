"""Builds are folders with a manifest; broken ones are said and harm no other."""

import json
import os
from pathlib import Path

import psutil
import pytest

from llmgw.config import keys
from llmgw.engines import installed
from llmgw.engines.installed import choose, survey
from llmgw.engines.place import Build
from llmgw.errors import EngineError
from tests.engines.places import replica


def build(folder: Path, **manifest: object) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/llama-server").write_text("")
    manifest = {"engine": "llamacpp", "binary": "bin/llama-server", **manifest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def found(engines_dir: Path, settings: keys.Engines | None = None) -> tuple[Build, ...]:
    return survey(engines_dir, settings or keys.Engines(), search_path="").builds


def test_builds_stand_side_by_side_and_links_are_followed(tmp_path: Path) -> None:
    store = build(tmp_path / "store/abc-llama", version="b2", features=["rpc"])
    build(tmp_path / "engines/one", version="b1", digest="sha256:1")
    (tmp_path / "engines/two").symlink_to(store)
    build(tmp_path / "engines/.tmp-half")
    (tmp_path / "engines/notes").mkdir()

    assert found(tmp_path / "engines") == (
        Build(
            name="one",
            engine="llamacpp",
            binary=f"{tmp_path}/engines/one/bin/llama-server",
            version="b1",
            digest="sha256:1",
        ),
        Build(
            name="two",
            engine="llamacpp",
            binary=f"{store}/bin/llama-server",
            version="b2",
            features=("rpc",),
        ),
    )


def test_no_folder_at_all_is_an_answer(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        ("{", "is no manifest"),
        ('{"engine": "llamacpp"}', "is no manifest"),
        ('{"engine": "llamacpp", "binary": "bin/no"}', "there is no binary bin/no"),
        ('{"engine": "llamacpp", "binary": "/bin/sh"}', "lies outside of the build"),
        ('{"engine": "llamacpp", "binary": "../x"}', "lies outside of the build"),
    ],
)
def test_a_broken_build_is_said_and_harms_no_other(
    tmp_path: Path, manifest: str, what: str
) -> None:
    build(tmp_path / "good")
    build(tmp_path / "bad")
    (tmp_path / "bad/manifest.json").write_text(manifest)

    seen = survey(tmp_path, keys.Engines(), search_path="")

    assert [one.name for one in seen.builds] == ["good"]
    [problem] = seen.problems
    assert problem.code == "broken_build"
    assert problem.where == str(tmp_path / "bad/manifest.json")
    assert what in problem.what


def test_a_manifest_that_is_a_fifo_or_endless_holds_nobody_up(tmp_path: Path) -> None:
    build(tmp_path / "good")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo/manifest.json")
    build(tmp_path / "large")
    with (tmp_path / "large/manifest.json").open("wb") as file:
        file.truncate(1 << 40)

    seen = survey(tmp_path, keys.Engines(), search_path="")

    assert [one.name for one in seen.builds] == ["good"]
    said = {one.where: one.what for one in seen.problems}
    assert "is not a regular file" in said[str(tmp_path / "fifo/manifest.json")]
    assert "is larger than" in said[str(tmp_path / "large/manifest.json")]


def test_a_manifest_that_is_a_folder_costs_no_descriptor(tmp_path: Path) -> None:
    """Builds are looked at again and again, for as long as the agent lives."""
    (tmp_path / "odd/manifest.json").mkdir(parents=True)
    before = psutil.Process().num_fds()

    said = [survey(tmp_path, keys.Engines(), search_path="") for _ in range(20)]

    assert {problem.what for one in said for problem in one.problems} == {
        "cannot be read: Is a directory"
    }
    assert psutil.Process().num_fds() == before


def test_the_file_and_path_name_builds_too(tmp_path: Path) -> None:
    program = tmp_path / "bin/llama-server"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    settings = keys.Engines(vllm=keys.Vllm(path="/opt/v/bin/vllm"))

    seen = survey(tmp_path / "e", settings, search_path=str(program.parent))

    assert seen.builds == (
        Build(name="(PATH)", engine="llamacpp", binary=str(program)),
        Build(name="(path)", engine="vllm", binary="/opt/v/bin/vllm"),
    )


def of(name: str, version: str | None = None) -> Build:
    return Build(name=name, engine="llamacpp", binary=f"/{name}", version=version)


def test_the_newest_and_then_the_one_on_path() -> None:
    everything = (of("(PATH)"), of("x", "b9999"), of("a", "b10434"))

    assert choose(everything, replica()).name == "a"
    assert choose(everything[:1], replica()).name == "(PATH)"
    assert choose(everything, replica(build="x")).name == "x"


def test_where_the_file_names_a_program_there_is_no_other() -> None:
    everything = (of("x"), of("(path)"), of("(PATH)"))

    assert choose(everything, replica()).name == "(path)"
    with pytest.raises(EngineError, match="no build x of llamacpp"):
        choose(everything, replica(build="x"))


def test_a_program_of_any_kind_is_only_what_the_file_names() -> None:
    """A build of engines_dir may be one that a control plane had installed."""
    fetched = Build(name="x", engine="command", binary="/x")
    own = Build(name="(path)", engine="command", binary="/own")

    assert choose((fetched, own), replica(engine="command")) == own
    for name in (None, "x"):
        with pytest.raises(EngineError, match="no build"):
            choose((fetched,), replica(engine="command", build=name))


def test_a_farm_of_links_into_the_store_is_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the store, and of nothing else outside of the build."""
    monkeypatch.setattr(installed, "NIX_STORE", f"{tmp_path}/nix/store/")
    for home, name in ((tmp_path / "nix/store/abc", "in"), (tmp_path / "usr", "out")):
        program = build(home) / "bin/llama-server"
        farm = build(tmp_path / "engines" / name) / "bin/llama-server"
        farm.unlink()
        farm.symlink_to(program)

    seen = survey(tmp_path / "engines", keys.Engines(), search_path="")

    assert [one.name for one in seen.builds] == ["in"]
    assert [one.where for one in seen.problems] == [
        str(tmp_path / "engines/out/manifest.json")
    ]


def test_a_build_that_is_not_here_is_refused_with_those_that_are() -> None:
    with pytest.raises(EngineError) as caught:
        choose((of("x"), of("y")), replica(build="z"))

    assert caught.value.what == (
        "there is no build z of llamacpp on this node; it has: x, y"
    )
