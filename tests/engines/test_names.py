"""The comparison with an engine's wheel tells what is missing, and only that."""

import zipfile
from pathlib import Path

import pytest

from tests.engines.names import main, written

PROBE = "class Request:\n    prompt: str\n    max_tokens: int = 16\n"


def wheel(path: Path, *, without: str = "") -> str:
    """One that has all the names of vLLM's module, *without* one of them."""
    names = written("vllm")
    fields = [name[2:].replace("-", "_") for name in names.flags - {"--headless"}]
    files = {
        # Both ways in which flags are made: of a class' fields, and written out.
        "vllm/engine/arg_utils.py": "class Arguments:\n"
        + "".join(f"    {name}: str\n" for name in fields if name != without),
        "vllm/entrypoints/cli_args.py": "add('--headless')\n",
        "vllm/metrics.py": "\n".join(
            f'"{name.removesuffix("_total")}"'
            for name in names.metrics
            if name != without
        ),
        "vllm/routes.py": "\n".join(
            f'"{name}"' for name in names.paths | names.variables if name != without
        ),
        "vllm/protocol.py": PROBE.replace(without or "-", "other"),
        # A name that only its tests know is no name of the engine.
        "vllm/tests/arg_utils.py": f"'--{without.replace('_', '-')}', '{without}'",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return str(path)


def test_a_wheel_that_has_all_names_is_as_the_module_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vllm", wheel(tmp_path / "a.whl")]) == 0
    assert "not in" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("max_model_len", "flag --max-model-len"),
        ("vllm:generation_tokens_total", "metric vllm:generation_tokens_total"),
        ("/health", "path /health"),
        ("VLLM_PORT", "variable VLLM_PORT"),
        ("max_tokens", "field max_tokens"),
    ],
)
def test_a_name_that_is_gone_is_said(
    without: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vllm", wheel(tmp_path / "a.whl", without=without)]) == 1
    missing = [
        line.partition(": ")[2]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("not in")
    ]
    assert missing == [said]


@pytest.mark.parametrize(
    "content", [None, b"no zip", {"a.py": b"\xff"}, {"x/arg_utils.py": b"def ("}]
)
def test_what_is_no_wheel_is_said_in_words(
    content: bytes | dict[str, bytes] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "nope.whl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in content.items():
                archive.writestr(name, text)

    with pytest.raises(SystemExit) as left:
        main(["vllm", str(path)])

    assert left.value.code == 2
    assert f"{path} cannot be read as a wheel" in capsys.readouterr().err


def test_all_that_is_written_is_looked_for() -> None:
    """Head, member, adapters, embeddings: no launch is left out."""
    vllm, sglang = written("vllm"), written("sglang")

    assert {"--headless", "--master-addr", "--lora-modules", "--runner"} <= vllm.flags
    assert {"--nccl-port", "--dist-init-addr", "--lora-paths"} <= sglang.flags
    assert "--is-embedding" in sglang.flags
    assert sglang.variables == {"SGLANG_HOST_IP"}
    assert sglang.fields == {"text", "sampling_params", "max_new_tokens"}


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["--help"], 0, "Whether an engine calls things"),
        (["vllm", "nope.whl"], 2, "nope.whl cannot be read as a wheel"),
        (["vllm", __file__], 2, "cannot be read as a wheel"),
        (["other", "a.whl"], 2, "choose from"),
        ([], 2, "required: engine, wheel"),
    ],
)
def test_what_cannot_be_compared_is_said_without_a_traceback(
    argv: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)

    assert ended.value.code == status
    assert said in "".join(capsys.readouterr())
