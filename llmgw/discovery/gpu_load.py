"""How busy the cards are, for every heartbeat. Runs in a child that stays.

The driver is left open only while a card is used: an idle node whose agent holds its
cards could not reset them, or load another driver.
"""

from pathlib import Path
from typing import Any

from llmgw.discovery import amd, gpu, pci

# What the driver itself keeps of a card that nobody uses is below this.
IDLE = 1 << 30


def sample(root: str = "/") -> list[dict[str, Any]]:
    """`{uuid, utilization, memory_used}` of each card and slice, as far as it is known.

    Of slices there is no utilization.
    """
    top = Path(root)
    cards = pci.cards(top)
    found = [
        _sample(card)
        for card in amd.gpus(top, [c for c in cards if c["vendor"] == "amd"])
        if card.get("uuid")
    ]
    if gpu.is_nvidia(top):
        # It costs a library that a node without such a card does not need.
        from llmgw.discovery import nvml_load

        found += nvml_load.sample(is_busy)
    return found


def _sample(card: dict[str, Any]) -> dict[str, Any]:
    now: dict[str, Any] = card["now"]
    free = now.get("memory_free")
    return {
        "uuid": card["uuid"],
        "utilization": now.get("utilization"),
        "memory_used": None if free is None else max(0, card["memory"] - free),
    }


def is_busy(samples: list[dict[str, Any]]) -> bool:
    """Whether anybody uses a card."""
    return any(
        one["utilization"] or (one["memory_used"] or 0) > IDLE for one in samples
    )
