"""Where fetched weights land: one rule for the agent, `pull` and `weights`."""

import json
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from llmgw.agent.landing import landing
from llmgw.agent.resolve import read
from llmgw.cli import parse
from llmgw.cli.pull import cache_of, prepared
from llmgw.config import keys
from llmgw.config.load import Loaded, load
from llmgw.discovery.node import Here
from llmgw.errors import ConfigError, Fault, WeightsError
from llmgw.weights.fetch import Weights
from llmgw.wire import Progress

# Not even root makes a file there.
READ_ONLY = "/proc/sys"


def written(folder: Path, *model_dirs: str, cache: str = "") -> Path:
    path = folder / "agent.toml"
    lines = ['servers = ["10.0.0.1"]', 'mgmt_addr = "10.0.0.2"']
    lines.append(f"model_dirs = {list(model_dirs)}")
    if cache:
        lines.append(f'weights_cache = "{cache}"')
    path.write_text("\n".join(lines))
    return path


def found(folder: Path, *model_dirs: str, cache: str = "") -> Loaded:
    return load(written(folder, *model_dirs, cache=cache))


def test_the_first_that_takes_files_has_them(tmp_path: Path) -> None:
    """T80: also one that is not there yet, and can be made."""
    nvme = str(tmp_path / "nvme")

    assert landing(found(tmp_path, READ_ONLY, nvme), Here()) == nvme
    assert landing(found(tmp_path, nvme, READ_ONLY), Here()) == nvme
    assert landing(found(tmp_path, nvme, cache=READ_ONLY), Here()) == READ_ONLY


def test_where_none_takes_files_it_is_a_clear_fault(tmp_path: Path) -> None:
    """T80."""
    fault = landing(found(tmp_path, READ_ONLY, "/proc/self"), Here())

    assert isinstance(fault, Fault)
    assert (fault.key, fault.line) == ("weights_cache", 3)
    assert "none of model_dirs can be written" in fault.what
    with pytest.raises(ConfigError, match="none of model_dirs"):
        prepared(tmp_path / "agent.toml", None)


async def test_an_agent_that_can_fetch_nothing_still_serves_what_is_there(
    tmp_path: Path,
) -> None:
    """T80: a mount that turned read-only over night is no reason not to start."""
    file = written(tmp_path, READ_ONLY, "/proc/self")
    resolved = await anyio.to_thread.run_sync(read, file)

    assert "weights_cache" in [one.key for one in resolved.warnings]
    assert resolved.config.weights_cache
    weights = Weights(keys.Weights(), Path(resolved.config.weights_cache), ())
    async with anyio.create_task_group() as group:
        await group.start(weights.run)
        with pytest.raises(WeightsError, match=READ_ONLY):
            await weights.ensure(f"file://{file}", None, ignore)
        group.cancel_scope.cancel()


def ignore(_: Progress) -> None:
    pass


class Dead(Here):
    """Its mounts do not answer."""

    def takes_files(self, directory: str) -> bool:
        raise TimeoutError(0, f"{directory} does not answer")


def test_a_dead_mount_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """The first is kept: it may answer again before anything is fetched."""
    assert landing(found(tmp_path, "/lustre", "/nfs"), Dead()) == "/lustre"


def test_every_command_finds_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pull` fetched into the tree that may only be read, the agent into the next."""
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    file = written(tmp_path, READ_ONLY, str(nvme))
    listing = parse(["weights", "--json", "--config", str(file), "list"])

    assert listing.run(listing) == 0
    assert json.loads(capsys.readouterr().out)["cache"] == str(nvme)
    assert read(file).config.weights_cache == str(nvme)
    assert cache_of(load(file)) == nvme
