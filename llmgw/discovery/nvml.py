"""What NVML says of NVIDIA cards. Runs in a child: a driver's call may never return."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml  # pyright: ignore[reportMissingTypeStubs] -- it has none

from llmgw.discovery.found import known, text

# It has no types.
nv: Any = pynvml
NVMLError = pynvml.NVMLError

_LEVELS = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_THROTTLE = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


def ask() -> dict[str, Any]:
    """`{"gpus": [...], …}`, or `{"error": words, "code": number, …}`.

    A card that answers no longer is listed with its error; the others are well.
    """
    try:
        nv.nvmlInit()
    except NVMLError as error:
        return {"error": _words(error), "code": _code(error), "library": _library()}
    try:
        return _all()
    except NVMLError as error:
        return {"error": _words(error), "code": _code(error)}
    finally:
        nv.nvmlShutdown()


def _code(error: NVMLError) -> int:
    value: Any = error
    return value.value


def _words(error: NVMLError) -> str:
    return str(error)


def _library() -> str | None:
    """The version of the user-space driver: it stands in the library's file name."""
    for line in (text(Path("/proc/self/maps")) or "").splitlines():
        path = line.rpartition(" ")[2]
        if "libnvidia-ml.so" in path:
            version = Path(os.path.realpath(path)).name.partition(".so.")[2]
            return version if "." in version else None
    return None


def _all() -> dict[str, Any]:
    found: dict[str, Any] = known(
        {
            "driver": asked(nv.nvmlSystemGetDriverVersion),
            "cuda": _cuda(asked(nv.nvmlSystemGetCudaDriverVersion)),
        }
    )
    handles: list[tuple[int, Any]] = []
    gpus: list[dict[str, Any]] = []
    found["gpus"] = gpus
    for index in range(nv.nvmlDeviceGetCount()):
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
        except NVMLError as error:
            gpus.append({"index": index, "error": _words(error)})
            continue
        handles.append((index, handle))
        gpus.append(_card(index, handle))
    found["topology"] = _topology(handles)
    return found


def asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """None where a card does not have it: most are asked things only some know."""
    try:
        return call(*arguments)
    except NVMLError:
        return None


def _cuda(version: int | None) -> str | None:
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _card(index: int, handle: Any) -> dict[str, Any]:
    pci = asked(nv.nvmlDeviceGetPciInfo, handle)
    major_minor = asked(nv.nvmlDeviceGetCudaComputeCapability, handle)
    try:
        uuid = nv.nvmlDeviceGetUUID(handle)
    except NVMLError as error:
        return known({"index": index, "bus": pci and pci.busId, "error": _words(error)})
    return known(
        {
            "index": index,
            "uuid": uuid,
            "name": asked(nv.nvmlDeviceGetName, handle),
            "bus": pci and pci.busId,
            "minor": asked(nv.nvmlDeviceGetMinorNumber, handle),
            "memory": memory(handle),
            "compute": major_minor and f"{major_minor[0]}.{major_minor[1]}",
            "mig": _mig(handle),
            "vgpu": _vgpu(handle),
            "nvlinks": _nvlinks(handle) or None,
            "persistence": _bool(asked(nv.nvmlDeviceGetPersistenceMode, handle)),
            "ecc": _ecc(handle),
            "retired_pages": _retired(handle),
            "limits": _limits(handle),
            "now": _now(handle),
        }
    )


def _bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def memory(handle: Any) -> dict[str, int] | None:
    """Bytes; None where the card has none of its own (GB10: Not Supported)."""
    new = asked(lambda: nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2))
    if new is not None:
        return {"total": new.total, "reserved": new.reserved, "free": new.free}
    old = asked(nv.nvmlDeviceGetMemoryInfo, handle)
    return None if old is None else {"total": old.total, "free": old.free}


def _mig(handle: Any) -> dict[str, Any] | None:
    mode = asked(nv.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return None
    found = [
        known(
            {
                "uuid": asked(nv.nvmlDeviceGetUUID, one),
                "name": asked(nv.nvmlDeviceGetName, one),
                "gpu_instance": asked(nv.nvmlDeviceGetGpuInstanceId, one),
                "memory": memory(one),
            }
        )
        for _, one in slices(handle)
    ]
    return {"enabled": bool(mode[0]), "pending": bool(mode[1]), "slices": found}


def slices(handle: Any) -> list[tuple[int, Any]]:
    """Those that the card is cut into, by their numbers, which may have gaps."""
    mode = asked(nv.nvmlDeviceGetMigMode, handle)
    if mode is None or not mode[0]:
        return []
    most = asked(nv.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = [
        (number, asked(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        for number in range(most)
    ]
    return [(number, one) for number, one in found if one is not None]


def _vgpu(handle: Any) -> str | None:
    modes = {1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
    return modes.get(asked(nv.nvmlDeviceGetVirtualizationMode, handle) or 0)


def _nvlinks(handle: Any) -> list[dict[str, Any]]:
    """Every link that the card has; *peer* is the bus of what is at the other end."""
    found: list[dict[str, Any]] = []
    kinds = {0: "gpu", 1: "bridge", 2: "switch"}
    for number in range(nv.NVML_NVLINK_MAX_LINKS):
        state = asked(nv.nvmlDeviceGetNvLinkState, handle, number)
        if state is None:
            # Past the card's own links it is INVALID_ARGUMENT; without any at all
            # NOT_SUPPORTED comes at once.
            break
        peer = asked(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        kind = asked(nv.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        found.append(
            known(
                {
                    "link": number,
                    "up": bool(state),
                    "peer": peer and peer.busId,
                    "kind": None if kind is None else kinds.get(kind),
                }
            )
        )
    return found


def _ecc(handle: Any) -> dict[str, Any] | None:
    mode = asked(nv.nvmlDeviceGetEccMode, handle)
    if mode is None:
        return None
    count = nv.nvmlDeviceGetTotalEccErrors
    corrected = asked(count, handle, nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, 1)
    uncorrected = asked(count, handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 1)
    return known(
        {
            "enabled": bool(mode[0]),
            "now": known({"corrected": corrected}),
            "uncorrected": uncorrected,
        }
    )


def _retired(handle: Any) -> dict[str, Any] | None:
    """Pages taken out of use; on newer cards rows that were remapped instead."""
    causes = (
        nv.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        nv.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [asked(nv.nvmlDeviceGetRetiredPages, handle, cause) for cause in causes]
    rows = asked(nv.nvmlDeviceGetRemappedRows, handle)
    return (
        known(
            {
                "pages": None
                if None in pages
                else sum(len(list(one)) for one in pages),
                "remapped_rows": rows and rows[0] + rows[1],
                "pending": rows and bool(rows[2]),
                "failed": rows and bool(rows[3]),
            }
        )
        or None
    )


def _limits(handle: Any) -> dict[str, Any] | None:
    limit = asked(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
    most = asked(nv.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    clocks = {
        name: asked(nv.nvmlDeviceGetMaxClockInfo, handle, kind)
        for name, kind in (("sm_mhz", 1), ("memory_mhz", 2))
    }
    return (
        known(
            {
                "power_w": limit and limit / 1000,
                "power_max_w": most and most[1] / 1000,
                **clocks,
            }
        )
        or None
    )


def _now(handle: Any) -> dict[str, Any]:
    used = asked(nv.nvmlDeviceGetUtilizationRates, handle)
    power = asked(nv.nvmlDeviceGetPowerUsage, handle)
    # The old name goes with CUDA 14, and old drivers do not know the new one.
    reasons = asked(nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:
        reasons = asked(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return known(
        {
            "utilization": used and used.gpu / 100,
            "temperature_c": asked(nv.nvmlDeviceGetTemperature, handle, 0),
            "power_w": power and power / 1000,
            "throttle": None
            if reasons is None
            else [word for bit, word in _THROTTLE.items() if reasons & bit],
        }
    )


def _topology(handles: list[tuple[int, Any]]) -> list[dict[str, Any]]:
    """How each two cards are joined by the PCI tree, nearest first."""
    found: list[dict[str, Any]] = []
    for at, (first, one) in enumerate(handles):
        for second, other in handles[at + 1 :]:
            level = asked(nv.nvmlDeviceGetTopologyCommonAncestor, one, other)
            word = _LEVELS.get(-1 if level is None else level)
            if word is not None:
                found.append({"between": [first, second], "path": word})
    return found
