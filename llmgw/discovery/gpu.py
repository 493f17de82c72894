"""GPUs: NVML's answer, nvidia-smi's where there is no library, PCI for what is left."""

from pathlib import Path
from typing import Any

from llmgw.discovery import amd, pci, topology, xid
from llmgw.discovery.found import Found, Trouble, fields, known, text
from llmgw.discovery.memory import size

# Where card and CPU share one memory, the system keeps this much of it.
RESERVE = 8 << 30
MISMATCH, NO_LIBRARY = 18, 12
_REBOOT = "reboot, or load the module that belongs to the libraries"


def is_nvidia(root: Path) -> bool:
    """Whether there is a sign of an NVIDIA card; without one no library is loaded."""
    signs = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvgpu", "dev/dxg")
    if any((root / sign).exists() for sign in signs):
        return True
    return any(card["vendor"] == "nvidia" for card in pci.cards(root))


def is_asked(root: Path) -> bool:
    """Whether a driver has to be asked, which may hang."""
    return is_nvidia(root) or _has_amd(root)


def _has_amd(root: Path) -> bool:
    return any(card["vendor"] == "amd" for card in pci.cards(root))


def survey(prefer_nvml: bool = True, root: str = "/") -> Found:
    """Asks, and may hang: to be run in a child."""
    if _has_amd(Path(root)) and not is_nvidia(Path(root)):
        return combined("PCI", {}, Path(root))
    # Each of them costs the start of a library or a process that may be needless.
    from llmgw.discovery import smi

    def by_nvml() -> dict[str, Any]:
        try:
            from llmgw.discovery import nvml
        except ImportError as error:
            return {"error": str(error), "code": NO_LIBRARY}
        return nvml.ask()

    ways = [("NVML", by_nvml), ("nvidia-smi", smi.ask)]
    if not prefer_nvml:
        ways.reverse()
    source, answer = "", dict[str, Any]()
    reasons: list[str] = []
    for name, way in ways:
        source, answer = name, way()
        if "error" not in answer:
            break
        reasons.append(f"{name}: {answer['error']}")
        # The other way goes through the same driver, and would say so in other words.
        if answer.get("code") == MISMATCH:
            break
    return combined(source, answer, Path(root), "; ".join(reasons))


def combined(
    source: str, answer: dict[str, Any], root: Path, reason: str = ""
) -> Found:
    """What was answered, next to what PCI, /proc and the kernel's log say."""
    cards = pci.cards(root)
    troubles: list[Trouble] = []
    value: dict[str, Any] = known(
        {"driver": answer.get("driver"), "cuda": answer.get("cuda")}
    )
    value["gpus"], parents = _usable(answer, cards, root, troubles)
    if parents:
        value["parents"] = parents
    mismatch = _mismatch(answer, root)
    if mismatch:
        value["driver_mismatch"] = mismatch
        troubles.append(_told(mismatch))
        reason = "the driver's library and module are of different versions"
    answered = {card["bus"] for card in (*value["gpus"], *parents) if "bus" in card}
    missing = [c for c in cards if c["vendor"] == "nvidia" and c["bus"] not in answered]
    if missing:
        value["missing"] = missing
        troubles += [_missing(card, reason) for card in missing if not mismatch]
    others = amd.gpus(root, [c for c in cards if c["vendor"] == "amd"])
    value["gpus"] += others
    whole = [card for card in value["gpus"] if "parent" not in card]
    paths = topology.pairs([*whole, *parents], answer.get("topology", []), root)
    if paths:
        value["topology"] = paths
    xids = xid.seen(root)
    if xids:
        value["xid"] = xids
        troubles += [_xid(one) for one in xids]
    if "error" in answer:
        source = "PCI"
    if others:
        source = "amdgpu" if source == "PCI" else f"{source}, amdgpu"
    if "error" in answer and not (value["gpus"] or missing or mismatch):
        return Found(None, source, reason, tuple(troubles))
    return Found(value, source, reason, tuple(troubles))


def _usable(
    answer: dict[str, Any],
    cards: list[dict[str, Any]],
    root: Path,
    troubles: list[Trouble],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What a replica can be given, and the cards that are given in slices."""
    by_bus = {card["bus"]: card for card in cards}
    usable: list[dict[str, Any]] = []
    parents: list[dict[str, Any]] = []
    for said in answer.get("gpus", ()):
        card: dict[str, Any] = {**said, "vendor": "nvidia"}
        if "bus" in card:
            card["bus"] = pci.plain(card["bus"])
            shown = by_bus.get(card["bus"], {})
            card |= {key: shown[key] for key in ("numa", "pcie") if key in shown}
        for link in card.get("nvlinks", ()):
            if "peer" in link:
                link["peer"] = pci.plain(link["peer"])
        if "error" in card:
            troubles.append(_lost(card))
            continue
        troubles += _worn(card)
        _share(card, root)
        slices = card.pop("mig", None)
        if slices is None or not slices["enabled"]:
            usable.append(card)
            continue
        parents.append({**card, "mig": True})
        usable += [_slice(one, card) for one in slices["slices"]]
    return usable, parents


def _share(card: dict[str, Any], root: Path) -> None:
    """Free memory changes all the time; no memory of its own: it is the system's."""
    memory = card.get("memory")
    if memory is None:
        info = fields(text(root / "proc/meminfo"))
        total, free = size(info, "MemTotal"), size(info, "MemAvailable")
        card["unified"] = True
        if total is None:
            return
        card["memory"] = max(0, total - RESERVE)
        if free is not None:
            card.setdefault("now", {})["memory_free"] = max(0, free - RESERVE)
        return
    card["memory"] = memory["total"]
    if "reserved" in memory:
        card["memory_reserved"] = memory["reserved"]
    if "free" in memory:
        card.setdefault("now", {})["memory_free"] = memory["free"]


def _slice(said: dict[str, Any], card: dict[str, Any]) -> dict[str, Any]:
    memory: dict[str, Any] = said.get("memory") or {}
    kept = ("bus", "vendor", "numa", "compute", "pcie")
    return known(
        {
            **{key: card[key] for key in kept if key in card},
            "uuid": said.get("uuid"),
            "name": said.get("name"),
            "parent": card["uuid"],
            "gpu_instance": said.get("gpu_instance"),
            "memory": memory.get("total"),
            "now": known({"memory_free": memory.get("free")}),
        }
    )


def _mismatch(answer: dict[str, Any], root: Path) -> dict[str, str] | None:
    if answer.get("code") != MISMATCH:
        return None
    return {
        "library": answer.get("library") or "unknown",
        "module": module(root) or "unknown",
    }


def module(root: Path) -> str | None:
    """The version of the loaded kernel module."""
    said = text(root / "sys/module/nvidia/version")
    if said:
        return said
    for word in (text(root / "proc/driver/nvidia/version") or "").split():
        if word[:1].isdigit() and "." in word:
            return word
    return None


def _told(mismatch: dict[str, str]) -> Trouble:
    what = (
        f"the driver's library is {mismatch['library']}, the loaded kernel module "
        f"{mismatch['module']}: no GPU can be used"
    )
    return Trouble("driver_mismatch", what, "GPUs", _REBOOT, "error")


def _missing(card: dict[str, Any], reason: str) -> Trouble:
    why = reason or "NVML does not list it"
    if card.get("driver") == "vfio-pci":
        why = "vfio-pci holds it, for a virtual machine"
    what = f"PCI shows a card that cannot be used: {why}"
    return Trouble("gpu_missing", what, card["bus"], "", "error")


def _lost(card: dict[str, Any]) -> Trouble:
    where = card.get("bus") or f"GPU {card['index']}"
    return Trouble("gpu_lost", f"the card answers: {card['error']}", where, "", "error")


def _worn(card: dict[str, Any]) -> list[Trouble]:
    """Memory that the card itself says is not well."""
    retired: dict[str, Any] = card.get("retired_pages", {})
    where = card.get("bus") or f"GPU {card['index']}"
    if retired.get("failed"):
        what = "broken memory could not be remapped: it has no spare rows left"
        return [Trouble("gpu_memory", what, where, "replace the card", "error")]
    if retired.get("pending"):
        what = "broken memory is taken out of use at the next reset of the card"
        return [Trouble("gpu_memory", what, where, "drain, then reset the card")]
    return []


def _xid(one: dict[str, Any]) -> Trouble:
    what = f"the driver reported Xid {one['xid']}, {one['count']} times since boot"
    return Trouble("gpu_xid", what, one["bus"])
