"""A fleet of real programs for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(tmp_path)
    try:
        yield found
    finally:
        found.end()
