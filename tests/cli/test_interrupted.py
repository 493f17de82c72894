"""Ctrl-C at any moment of a command is its end, and no traceback."""

from collections.abc import Sequence

import pytest

import llmgw.__main__


def test_a_command_interrupted_while_it_is_read_in_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`llmgw up` imports for the better part of a second."""

    def interrupted(_argv: Sequence[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llmgw.__main__, "parse", interrupted)

    with pytest.raises(SystemExit) as left:
        llmgw.__main__.main()

    assert left.value.code == 130
    assert capsys.readouterr() == ("", "")
