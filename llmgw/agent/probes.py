"""The probes of the inventory: what each looks at, and how it is asked.

The only place that knows them all; they do not know each other.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from llmgw.agent import builds
from llmgw.config.keys import Config
from llmgw.config.normalise import cleaned
from llmgw.discovery import (
    cpu,
    fabric,
    gpu,
    memory,
    network,
    numa,
    system,
)
from llmgw.discovery.child import Child
from llmgw.discovery.found import Found, clean

ROOT = Path("/")
# A scan of 100,000 models needs a tenth of it; a header may claim anything.
SCAN_MEMORY = 2 << 30
SCAN_LEAST, SCAN_TIMES = 60.0, 6


class Probe(Struct, frozen=True):
    """*ask* blocks, and gets what the last answer asked to be given back.

    *deadline* and *interval* are of the file that is in force when they are called.
    """

    ask: Callable[[Any], Found]
    interval: Callable[[], float]
    deadline: Callable[[], float]


def probes(config: Callable[[], Config], root: Path = ROOT) -> dict[str, Probe]:
    """By the name of the fact, as the wire has it."""
    gpus = Child("llmgw.discovery.gpu", "survey")
    programs = builds.Builds(root)
    disks = Child("llmgw.discovery.disk", "survey", is_bare=True)
    models = Child("llmgw.weights.local", "survey", is_bare=True, memory=SCAN_MEMORY)
    asks: dict[str, Callable[[Any], Found]] = {
        "os": lambda _: clean(system.survey(root)),
        "cpu": lambda _: clean(cpu.survey(root)),
        "memory": lambda _: clean(memory.survey(root)),
        "numa": lambda _: clean(numa.survey(root)),
        "nics": lambda _: clean(network.survey(root)),
        "hcas": lambda _: clean(fabric.survey(config().fabrics, root)),
        "gpus": lambda _: _gpus(gpus, config(), root),
        "disks": lambda _: disks.ask(
            {"folders": folders(config())}, config().discovery.probe_timeout
        ),
        "builds": lambda kept: programs.survey(config(), kept or {}),
        "models": lambda kept: models.ask(
            {"folders": model_folders(config()), "memory": kept},
            _scan_limit(config()),
        ),
    }
    return {
        name: Probe(
            ask,
            lambda name=name: _interval(name, config()),
            lambda name=name: _deadline(name, config()),
        )
        for name, ask in asks.items()
    }


def _interval(name: str, config: Config) -> float:
    if name == "models":
        return config.discovery.rescan_models or math.inf
    return config.discovery.interval


def _scan_limit(config: Config) -> float:
    """A scan of a large tree that is cold takes minutes, and is no hung probe."""
    return max(SCAN_LEAST, SCAN_TIMES * config.discovery.probe_timeout)


def _deadline(name: str, config: Config) -> float:
    """A child has its own; this is for the thread around it."""
    if name == "models":
        return _scan_limit(config) + 5
    if name == "builds":  # the list, and then what the programs say
        return (1 + builds.PATIENCE) * config.discovery.probe_timeout + 5
    return config.discovery.probe_timeout + 5


def _gpus(child: Child, config: Config, root: Path) -> Found:
    """The driver is only asked where there is a sign of one."""
    if not gpu.is_asked(root):
        return clean(gpu.combined("PCI", {}, root))
    settings = config.discovery
    return child.ask(
        {"prefer_nvml": settings.prefer_nvml, "root": str(root)},
        settings.probe_timeout,
    )


def model_folders(config: Config) -> list[str]:
    cache = [config.weights_cache] if config.weights_cache else []
    return [*dict.fromkeys((*config.model_dirs, *cache))]


def folders(config: Config) -> dict[str, list[str]]:
    """What the node uses, by the key that names it. The cache, which is always one of
    model_dirs, once: one that was missing was told of as a folder of models.
    """
    cache = config.weights_cache
    others = [path for path in config.model_dirs if not _is_same(path, cache)]
    return {
        "model_dirs": others,
        "weights_cache": [cache] if cache else [],
        "engines_dir": [config.engines_dir],
        "state_dir": [config.state_dir],
    }


def _is_same(path: str, other: str | None) -> bool:
    return other is not None and cleaned(path) == cleaned(other)
