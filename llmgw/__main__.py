"""`llmgw` on the command line."""

import os
import sys
from pathlib import Path

from llmgw.cli import parse
from llmgw.errors import LlmgwError


def main() -> None:
    # None: it was closed before we started.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 -- to the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 -- to the end
    try:
        code = _done()
        sys.stdout.flush()
    except* LlmgwError as group:
        faults = tuple(leaves(group))
        for fault in faults:
            print(fault, file=sys.stderr)
        code = max(fault.exit_code for fault in faults)
    except* BrokenPipeError:
        # Whoever read us, `head` say, has enough.
        _drop_output()
        code = 1
    except* OSError:
        why = _not_taken()
        if why is None:
            raise
        print(f"standard output cannot be written: {why}", file=sys.stderr)
        _drop_output()
        code = 1
    except* KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _done() -> int:
    try:
        # Also reads in the command, which takes long enough for a Ctrl-C.
        arguments = parse(sys.argv[1:])
    except SystemExit as left:  # argparse has shown its help, or what is wrong
        return left.code if isinstance(left.code, int) else 1
    return arguments.run(arguments)


def _not_taken() -> str | None:
    """Why what was said can't be written; None: that is not what went wrong."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        return error.strerror
    return None


def _drop_output() -> None:
    """Python would try once more as it ends, and say so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
