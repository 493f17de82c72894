"""How near two PCI functions are, in the words that nvidia-smi has for it."""

from pathlib import Path

import pytest

from llmgw.discovery import fabric, gpu, pci
from tests.captures import unpack
from tests.discovery import trees

PORT = "pci0000:16/0000:16:01.0"
SWITCH = f"{PORT}/0000:17:00.0"
CARD = f"{SWITCH}/0000:18:00.0/0000:19:00.0"
BESIDE = f"{SWITCH}/0000:18:01.0/0000:1a:00.0"
BELOW = f"{SWITCH}/0000:18:02.0/0000:1b:00.0/0000:1c:00.0/0000:1d:00.0"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (f"{PORT}/0000:17:00.0", f"{PORT}/0000:17:00.1", "PIX"),
        (CARD, BESIDE, "PIX"),
        (CARD, BELOW, "PXB"),
        (CARD, "pci0000:16/0000:16:02.0/0000:20:00.0", "PHB"),
        (CARD, "pci0000:30/0000:30:01.0/0000:31:00.0", "NODE"),
        (CARD, "pci0000:80/0000:80:01.0/0000:81:00.0", "SYS"),
    ],
)
def test_the_way_between_two_functions(
    tmp_path: Path, one: str, other: str, words: str
) -> None:
    for way in (one, other):
        bus = trees.hang(tmp_path, way)
        node = "1" if "pci0000:80" in way else "0"
        trees.write(tmp_path, {f"sys/bus/pci/devices/{bus}/numa_node": node})
    here, there = one.rpartition("/")[2], other.rpartition("/")[2]

    assert pci.path(tmp_path, here, there) == words
    assert pci.path(tmp_path, there, here) == words


def test_a_tree_that_is_not_shown_is_unknown(tmp_path: Path) -> None:
    trees.gpu(tmp_path, "0000:18:00.0")
    trees.gpu(tmp_path, "0000:19:00.0")

    assert pci.path(tmp_path, "0000:18:00.0", "0000:19:00.0") is None


def test_cards_and_adapters_are_measured_by_one_rule(tmp_path: Path) -> None:
    """A card that is another's neighbour is so to the adapter beside that one."""
    root = unpack("h100-infiniband", tmp_path)
    answer = {
        "gpus": [
            {"index": at, "uuid": bus, "bus": f"0000{bus}"}
            for at, bus in enumerate(card["bus"] for card in pci.cards(root))
        ]
    }

    found = gpu.combined("nvidia-smi", answer, root).value["topology"]
    near = {hca["name"]: hca["gpus"] for hca in fabric.survey(root=root).value}

    between = {tuple(pair["between"]): pair["path"] for pair in found}
    assert between["0000:1b:00.0", "0000:43:00.0"] == "NODE"
    assert between["0000:1b:00.0", "0000:df:00.0"] == "SYS"
    assert len(between) == 28
    paths = {card["bus"]: card["path"] for card in near["mlx5_0"]}
    assert paths.pop("0000:1b:00.0") == "PXB"
    assert paths == {other: between["0000:1b:00.0", other] for other in paths}


def test_cards_of_one_hive_reach_each_other_without_the_bus(tmp_path: Path) -> None:
    found = gpu.combined("PCI", {}, unpack("mi300x", tmp_path)).value["topology"]

    assert len(found) == 28
    assert {pair["path"] for pair in found} == {"XGMI"}
    assert {pair["pci"] for pair in found} == {"NODE", "SYS"}
