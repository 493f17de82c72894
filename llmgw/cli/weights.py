"""`llmgw weights`: what lies in the cache, is it whole, and what may leave."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from llmgw.cli._file import add_config, add_file, file_if_any, named, named_in
from llmgw.cli.pull import cache_of
from llmgw.config.load import load
from llmgw.config.normalise import WEIGHTS
from llmgw.errors import WeightsError
from llmgw.weights import marker
from llmgw.weights.cache import OPEN, Cache, Item
from llmgw.weights.space import shown
from llmgw.weights.verify import sha256

EXAMPLE = """\
example:
  llmgw weights list
  llmgw weights verify hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF@9217f5d…
  llmgw weights evict https/host/model.gguf
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "weights",
        help="list, verify, pin and evict what was fetched",
        description="What lies in weights_cache. Works with or without an agent.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config(parser)
    _add_options(parser)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, told, act in (
        ("list", "what lies there, the longest unused first", _list),
        ("verify", "read it all; what is damaged is fetched again", _verify),
        ("pin", "never evict it", _pin),
        ("unpin", "let it be evicted again", _unpin),
        ("evict", "remove it", _evict),
    ):
        verb = verbs.add_parser(name, help=told, description=told)
        # Behind the verb as well as before it; there, what was said before stands.
        _add_options(verb, default=argparse.SUPPRESS)
        if name == "list":
            add_file(verb, default=argparse.SUPPRESS)
        else:
            add_config(verb, default=argparse.SUPPRESS)
            verb.add_argument(
                "names",
                nargs="*" if name == "verify" else "+",
                metavar="NAME",
                help="a source or a folder, as `llmgw weights list` shows them",
            )
        verb.set_defaults(act=act)
    parser.set_defaults(run=run)


def _add_options(parser: Any, **more: Any) -> None:
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="another folder", **more
    )
    parser.add_argument("--json", action="store_true", help="print JSON", **more)


def run(arguments: argparse.Namespace) -> int:
    cache = Cache(_root(named_in(arguments), arguments.cache))
    act: Callable[[Cache, argparse.Namespace], int] = arguments.act
    with named():
        return act(cache, arguments)


def _root(config: Path | None, cache: Path | None) -> Path:
    if cache is not None:
        if not cache.is_dir():
            is_there = os.path.lexists(cache)
            what = "is no folder" if is_there else "there is no such folder"
            raise WeightsError(what, where=str(cache))
        return cache.absolute()
    file = file_if_any(config)
    return Path(WEIGHTS) if file is None else cache_of(load(file))


def _list(cache: Cache, arguments: argparse.Namespace) -> int:
    items = cache.items()
    if arguments.json:
        _print_json({"cache": str(cache.root), "weights": msgspec.to_builtins(items)})
        return 0
    for item in items:
        why = "pinned" if item.pinned else item.in_use or "unused"
        print(f"{shown(item.size):>10}  {_ago(item.used_s_ago):>8}  {item.folder}")
        for source in item.sources:
            print(f"{'':20}  {source}  ({item.files} files, {why})")
    if not items:
        print(f"nothing that was fetched lies in {cache.root}")
        return 0
    total = shown(sum(item.size for item in items))
    print(f"{total:>10}  {len(items)} in {cache.root}")
    return 0


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "now"


def _verify(cache: Cache, arguments: argparse.Namespace) -> int:
    items = _named(cache, arguments.names) if arguments.names else cache.items()
    wrong: list[dict[str, str]] = []
    for item in items:
        folder = cache.root / item.folder
        for name, entry in marker.read(folder).files.items():
            fault = _fault(folder / name, entry)
            if fault:
                path = str(folder / name)
                then, fix = _distrusted(cache, item, name)
                wrong.append({"path": path, "what": fault, "then": then, "fix": fix})
            if not arguments.json:
                _say(folder / name, wrong[-1] if fault else None)
    if arguments.json:
        _print_json({"verified": len(items), "wrong": wrong})
    elif not items:
        print(f"nothing that was fetched lies in {cache.root}")
    return 1 if wrong else 0


def _say(path: Path, wrong: dict[str, str] | None) -> None:
    if wrong is None:
        print(f"{path}: right", flush=True)
        return
    print(
        f"{path}: {wrong['what']}; it {wrong['then']}\n  fix: {wrong['fix']}",
        flush=True,
    )


def _fault(path: Path, entry: marker.Entry) -> str:
    """What is wrong with it; LlmgwError if this user can't tell."""
    try:
        size = path.stat().st_size
        if size != entry.size:
            return f"is {size} bytes long, {entry.size} were published"
        found = sha256(path, lambda _what, _done, _total: None)
    except PermissionError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    same = found == entry.sha256
    return "" if same else f"is sha256:{found}, was sha256:{entry.sha256}"


def _distrusted(cache: Cache, item: Item, name: str) -> tuple[str, str]:
    """What became of a damaged file, and what a person does."""
    again = f"verify {item.folder} again"
    try:
        done = cache.distrust(item, name)
    except OSError as error:
        why = f"stays, as {error.filename} cannot be changed: {error.strerror}"
        return why, f"as who may write to the cache, {again}"
    if done == OPEN:
        return f"stays, as {OPEN}", f"stop the replica that uses it, and {again}"
    source = min(item.sources, default="its source", key=len)
    return done, f"`llmgw pull {source}` fetches it again, as the next replica does"


def _pin(cache: Cache, arguments: argparse.Namespace) -> int:
    return _each(cache, arguments, cache.pin, "pinned")


def _unpin(cache: Cache, arguments: argparse.Namespace) -> int:
    return _each(cache, arguments, cache.unpin, "unpinned")


def _evict(cache: Cache, arguments: argparse.Namespace) -> int:
    return _each(cache, arguments, cache.evict, "evicted")


def _each(
    cache: Cache,
    arguments: argparse.Namespace,
    act: Callable[[Item], None],
    done: str,
) -> int:
    items = _named(cache, arguments.names)
    for item in items:
        with named("changed", cache.root / item.folder):
            act(item)
        if not arguments.json:
            print(f"{done} {item.folder}, {shown(item.size)}")
    if arguments.json:
        _print_json({done: [item.folder for item in items]})
    return 0


def _named(cache: Cache, names: list[str]) -> list[Item]:
    """What the names mean, each at least one thing."""
    found: dict[str, Item] = {}
    for name in names:
        items = cache.find(name)
        if not items:
            raise WeightsError(
                "no such weights",
                where=name or '""',
                fix="`llmgw weights list` names them",
            )
        found |= {item.folder: item for item in items}
    return list(found.values())


def _print_json(facts: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(facts)).decode())
