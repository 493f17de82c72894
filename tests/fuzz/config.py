"""Throw files at the loader until the time is up: python -m tests.fuzz.config."""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from llmgw.config.document import example
from llmgw.config.dump import dump
from llmgw.config.load import load
from llmgw.errors import ConfigError

_SUFFIXES = ("toml", "yaml", "json")
_YAML = """\
servers: [cp1, "[fd20::1]:7443"]
labels: {rack: a1}
tls: {cert_file: /c, key_file: /k, ca_file: /a}
fabrics:
- name: ib0
  hcas: [mlx5_0]
weights:
  cache_limit: 2TiB
"""
_JSON = json.dumps(
    {
        "server": "cp1",
        "heartbeat_interval": "1m30s",
        "engines": {"llamacpp": {"threads": 8, "env": {"A": "b"}}},
        "weights": {"mirrors": [{"url": "https://m", "ca_file": "/a"}]},
    },
    indent=1,
)
_PIECES = (
    '"', "'", '"""', "'''", "[", "]", "[[", "]]", "{", "}", "=", ":", ",", ".", "#",
    "\n", "\r\n", "\t", " ", "-", "\\", "\\u0000", "\\ud800", "\\U00110000", "\0", "%",
    "&a", "*a", "!!str", "? ", "| ", "> ", "---", "...", "<<: ", "1e999", "0x", "nan",
    "9" * 5000, "true", "null", "servers", "server", "tls", "1979-05-27T07:32:00Z",
    "\ufeff", "\u2028", "http://", "@", "[::", "%25", "\uff15s", "µs",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**32
    sys.stdout.write(f"seed {seed}\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        tried, accepted = run(random.Random(seed), arguments.seconds, Path(folder))
    sys.stdout.write(f"{tried} files, {accepted} accepted, nothing else raised\n")
    return 0


def run(chance: random.Random, seconds: float, folder: Path) -> tuple[int, int]:
    """Files tried, and accepted. Whatever the loader raises of another's comes out."""
    seeds = {"toml": example(), "yaml": _YAML, "json": _JSON}
    tried = accepted = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        suffix = chance.choice(_SUFFIXES)
        data = _spoil(seeds[suffix].encode(), chance)
        path = folder / f"a.{suffix}"
        path.write_bytes(data)
        tried += 1
        try:
            config = load(path).config
        except ConfigError:
            continue
        except BaseException:
            sys.stdout.write(f"this file made it raise: {data!r}\n")
            raise
        accepted += 1
        again = folder / "again.toml"
        again.write_text(dump(config))
        assert load(again).config == config, f"not the same again: {data!r}"
    return tried, accepted


def _spoil(data: bytes, chance: random.Random) -> bytes:
    text = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(5):
            case 0:
                text[at : at + chance.randrange(1, 30)] = b""
            case 1:
                text[at:at] = chance.choice(_PIECES).encode()
            case 2:
                text[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                start = chance.randrange(len(text) + 1)
                text[at:at] = text[start : start + chance.randrange(1, 60)]
            case _:
                piece = chance.choice(_PIECES).encode()
                text[at : at + len(piece)] = piece
    return bytes(text)


if __name__ == "__main__":
    sys.exit(main())
