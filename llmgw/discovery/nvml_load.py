"""What NVML says of the load of NVIDIA cards, and of nothing else."""

from collections.abc import Callable
from typing import Any

import pynvml  # pyright: ignore[reportMissingTypeStubs] -- it has none

from llmgw.discovery.nvml import asked, memory, slices

nv: Any = pynvml


class _Driver:
    """Whether it is open, from one question to the next."""

    def __init__(self) -> None:
        self.is_open = False


_driver = _Driver()


def sample(is_busy: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Nothing if the driver does not answer: the survey says why."""
    try:
        if not _driver.is_open:
            nv.nvmlInit()
            _driver.is_open = True
        found = [
            one
            for index in range(nv.nvmlDeviceGetCount())
            for one in _card(asked(nv.nvmlDeviceGetHandleByIndex, index))
        ]
    except pynvml.NVMLError:
        found = []
    if _driver.is_open and not is_busy(found):
        asked(nv.nvmlShutdown)
        _driver.is_open = False
    return found


def _card(handle: Any) -> list[dict[str, Any]]:
    """The card, or its slices if it is given away in slices."""
    if handle is None:
        return []
    parts = [part for _, part in slices(handle)]
    used = asked(nv.nvmlDeviceGetUtilizationRates, handle) if not parts else None
    return [
        {
            "uuid": uuid,
            "utilization": used and used.gpu / 100,
            "memory_used": _used(one),
        }
        for one in parts or [handle]
        if (uuid := asked(nv.nvmlDeviceGetUUID, one)) is not None
    ]


def _used(handle: Any) -> int | None:
    said = memory(handle)
    return None if said is None else max(0, said["total"] - said["free"])
