"""The table of faults in docs/link.md names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/link.md").read_text()


def rows() -> list[list[str]]:
    table = PAGE.partition("| fault |")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_each_fault_names_a_test_that_there_is() -> None:
    sources = "\n".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py")
    )
    there = set(re.findall(r"def (test_\w+)", sources))
    found = [row for row in rows() if not row[0].startswith("---")]

    assert len(found) > 20
    for fault, _, shown_by in found:
        names = re.findall(r"`(test_\w+)`", shown_by)
        assert names, fault
        assert set(names) <= there, fault
