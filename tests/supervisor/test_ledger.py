"""What is kept of engines may be damaged; the agent starts all the same."""

from pathlib import Path

import pytest

from llmgw.supervisor.ledger import Ledger


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe\x00", b"abc\x00", b"a=b"])
def test_a_damaged_tag_is_drawn_anew(tmp_path: Path, damaged: bytes) -> None:
    """Bytes that are no text ended every agent that started on that directory."""
    (tmp_path / "ledger-tag").write_bytes(damaged)
    ledger, again = Ledger(tmp_path), Ledger(tmp_path)

    ledger.open()
    again.open()

    assert len(ledger.tag) == 32
    assert again.tag == ledger.tag
