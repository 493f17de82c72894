"""The best way between each two cards: NVLink or XGMI, else through the PCI tree."""

from itertools import combinations
from pathlib import Path
from typing import Any

from llmgw.discovery import pci


def pairs(
    cards: list[dict[str, Any]], said: list[dict[str, Any]], root: Path
) -> list[dict[str, Any]]:
    """*said*: what NVML answers of the PCI tree, by index, for where /sys shows none.

    *path* is the best way, *pci* what the tree offers beside a link of its own.
    """
    levels = {tuple(sorted(pair["between"])): pair["path"] for pair in said}
    found: list[dict[str, Any]] = []
    for one, other in combinations((c for c in cards if "uuid" in c), 2):
        if one["vendor"] != other["vendor"]:
            continue
        path = pci.path(root, one.get("bus", ""), other.get("bus", ""))
        if path is None and "index" in one and "index" in other:
            path = levels.get(tuple(sorted((one["index"], other["index"]))))
        direct = _direct(one, other)
        if direct is None and path is None:
            continue
        entry = {"between": [one["uuid"], other["uuid"]], "path": direct or path}
        if direct is not None and path is not None:
            entry["pci"] = path
        found.append(entry)
    return found


def _direct(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    if "xgmi" in one and one["xgmi"] == other.get("xgmi"):
        return "XGMI"
    links = _links(one, other)
    return f"NVLink x{links}" if links else None


def _links(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Links that are up from one card to the other, straight or by a switch."""
    up, back = (
        [x for x in card.get("nvlinks", ()) if x["up"]] for card in (one, other)
    )
    straight = sum(link.get("peer") == other.get("bus", "") for link in up)
    if straight:
        return straight
    by_switch = [
        sum(link.get("kind") == "switch" for link in links) for links in (up, back)
    ]
    return min(by_switch)
