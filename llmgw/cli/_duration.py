"""A duration on the command line: written as in the file."""

import argparse

from llmgw.config.address import quote
from llmgw.config.units import duration


def seconds(text: str) -> float:
    """For argparse's `type`, which says of a ValueError only that there was one."""
    try:
        found = duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quote(text)} {error}") from error
    if found < 0:
        raise argparse.ArgumentTypeError(f"must be no less than zero, not {text}")
    return found
