"""Whether an engine calls things as its module here does, read from its wheel.

    wheels=$(mktemp -d)
    .venv/bin/pip download --no-deps --dest "$wheels" vllm
    .venv/bin/python -m tests.engines.names vllm "$wheels"/vllm-*.whl

Nothing is run: neither the engine's hundred dependencies nor a GPU is needed. Ends
with 1 and the names that the wheel does not have. (llama.cpp has no such source in its
wheel; test_real_llama asks the program itself.)
"""

import argparse
import ast
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct

from llmgw import engines
from llmgw.config import keys
from llmgw.engines.place import Build, Place
from llmgw.wire import Lora, Replica
from tests.engines.places import MODEL, member, place, replica

SETTINGS = {"vllm": keys.Vllm(), "sglang": keys.Sglang()}
# Where these two say which flags they take, in the versions of the last two years.
ARGUMENTS = re.compile(r"server_args\.py$|/arg_groups/|arg_utils\.py$|cli_args\.py$")


_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, UnicodeError, SyntaxError)


class Names(Struct, frozen=True):
    """What a module here relies on. Flags with their dashes, *fields* of requests."""

    flags: set[str]
    metrics: set[str]
    paths: set[str]
    fields: set[str]
    variables: set[str]


def written(engine: str) -> Names:
    """All that the module of *engine* writes and asks for, in any of its launches."""
    names = Names(set(), set(), set(), set(), set())
    for one in _replicas(engine):
        launch = engines.launch(one, _place(engine, one))
        names.flags.update(word for word in launch.argv if word.startswith("--"))
        own = engine.upper() + "_"
        names.variables.update(name for name in launch.env if name.startswith(own))
        if launch.health is None:
            continue
        names.metrics.update(launch.health.progress_metrics)
        names.metrics.update({launch.health.requests_metric or ""} - {""})
        names.paths.update({launch.health.path, launch.health.metrics_path or "/"})
        if launch.health.probe is not None:
            names.paths.add(launch.health.probe.path)
            names.fields.update(_keys(json.loads(launch.health.probe.body)))
    names.paths.discard("/")
    return names


def _replicas(engine: str) -> Iterator[Replica]:
    common = {"engine": engine, "gpus": ("GPU-1",)}
    lora = (Lora(source=MODEL.source),)
    yield replica(context=8192, parallel=16, lora=lora, **common)
    yield replica(embeddings=True, **common)
    yield replica(group=member(0), **common)
    yield replica(group=member(1), **common)


def _place(engine: str, one: Replica) -> Place:
    build = Build(name="b", engine=engine, binary=f"/b/{engine}", digest="sha256:b1")
    return place(
        settings=SETTINGS[engine],
        build=build,
        ports=dict.fromkeys(engines.ports(one), 20000),
        hcas=("mlx5_0",),
    )


def _keys(body: object) -> Iterator[str]:
    if isinstance(body, dict):
        for name, value in cast("dict[str, object]", body).items():
            yield name
            yield from _keys(value)


def missing(names: Names, wheel: Path) -> list[str]:
    """The names that *wheel* does not have, each with what it was taken for."""
    flags: set[str] = set()
    texts: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(".py") or "/test" in name:
                continue
            text = archive.read(name).decode()
            texts.append(text)
            if ARGUMENTS.search(name):
                flags |= _flags(text)
    whole = "\n".join(texts)
    gone = [f"flag {name}" for name in sorted(names.flags - flags)]
    # A client library adds the _total of a counter where its name has none.
    gone += [
        f"metric {name}"
        for name in sorted(names.metrics)
        if not _stands(name, whole) and not _stands(name.removesuffix("_total"), whole)
    ]
    strings = {"path": names.paths, "variable": names.variables}
    for kind, several in strings.items():
        gone += [f"{kind} {one}" for one in sorted(several) if not _stands(one, whole)]
    for name in sorted(names.fields):
        if not re.search(rf"^    {name}: ", whole, re.MULTILINE):
            gone.append(f"field {name}")
    return gone


def _flags(text: str) -> set[str]:
    """Those written out, and those made of the fields of a class."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.ClassDef):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            names = (one.id for one in fields if isinstance(one, ast.Name))
            found |= {"--" + name.replace("_", "-") for name in names}
    return found


def _stands(name: str, text: str) -> bool:
    return f'"{name}"' in text or f"'{name}'" in text


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m tests.engines.names",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", choices=sorted(SETTINGS))
    parser.add_argument("wheel", type=Path)
    arguments = parser.parse_args(argv)
    engine, wheel = arguments.engine, arguments.wheel
    names = written(engine)
    try:
        gone = missing(names, wheel)
    except _UNREADABLE as error:
        parser.error(f"{wheel} cannot be read as a wheel: {error}")
    sys.stdout.writelines(f"not in {wheel}: {one}\n" for one in gone)
    whole = sum(len(getattr(names, field)) for field in Names.__struct_fields__)
    sys.stdout.write(f"{whole - len(gone)} of {whole} names of {engine} are there\n")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
