"""`llmgw` on the command line."""

import os
import sys

from llmgw.cli import parse
from llmgw.errors import LlmgwError


def main() -> None:
    try:
        # Also reads in the command, which takes long enough for a Ctrl-C.
        arguments = parse(sys.argv[1:])
        code = arguments.run(arguments)
        sys.stdout.flush()
    except* LlmgwError as group:
        faults = tuple(leaves(group))
        for fault in faults:
            print(fault, file=sys.stderr)
        code = max(fault.exit_code for fault in faults)
    except* BrokenPipeError:
        # Whoever read us, `head` say, has enough. Python would say so once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except* KeyboardInterrupt:
        code = 130
    sys.exit(code)


def leaves(group: BaseExceptionGroup[LlmgwError]) -> list[LlmgwError]:
    """The faults themselves: a group is how it was built, not what went wrong."""
    found: list[LlmgwError] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found += leaves(error)
        else:
            found.append(error)
    return found


if __name__ == "__main__":
    main()
