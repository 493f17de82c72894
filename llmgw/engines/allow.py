"""What a control plane may ask of this node's engines: the node's own file decides.

A control plane is trusted to place models, not to run what it likes as the engines'
user. Options with a name of their own in the replica (context, parallel, lora …) are
always allowed; free arguments and variables only where the file says so.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase

from llmgw.engines.place import Settings
from llmgw.errors import EngineError
from llmgw.wire import Replica

# Variables that make any program run other code, or that decide what this node has
# decided. A pattern with a wildcard does not reach them: they are named in full.
_LOADED_CODE = ("LD_*", "PYTHON*", "BASH_ENV", "ENV", "PATH", "GCONV_PATH")


def check(replica: Replica, settings: Settings, reserved: Collection[str]) -> None:
    """EngineError for the first thing that *replica* asks and may not have here."""
    kind = replica.engine
    if not settings.enabled:
        raise EngineError(
            f"the engine {kind} is turned off on this node",
            where=f"engines.{kind}.enabled",
            fix=f"set engines.{kind}.enabled = true in the node's file",
        )
    for flag in flags(settings.args):
        if _is_reserved(flag, reserved):
            raise EngineError(
                f"{flag} is decided by the agent and cannot stand in the node's file",
                where=f"engines.{kind}.args",
                fix=f"remove {flag}",
            )
    _check_args(replica, settings, reserved)
    for name in replica.env:
        if not _may_set(name, settings.allow_env):
            raise EngineError(
                f"the variable {name} is not allowed on this node",
                where="env",
                fix=f'add "{name}" to engines.{kind}.allow_env in the node\'s file',
            )


def _check_args(
    replica: Replica, settings: Settings, reserved: Collection[str]
) -> None:
    kind = replica.engine
    if replica.args and not _is_flag(replica.args[0]):
        first = replica.args[0]
        if not _matches(first, settings.allow_args):
            raise EngineError(
                f"the argument {first!r} belongs to no option, and is not allowed here",
                where="args",
                fix=f'add "{first}" to engines.{kind}.allow_args in the node\'s file',
            )
    for flag in flags(replica.args):
        if _is_reserved(flag, reserved):
            raise EngineError(
                f"the argument {flag} is decided by the agent", where="args"
            )
        if not _matches(flag, settings.allow_args):
            raise EngineError(
                f"the argument {flag} is not allowed on this node",
                where="args",
                fix=f'add "{flag}" to engines.{kind}.allow_args in the node\'s file',
            )


def flags(args: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the options in *args*, without the values.

    With dashes, whatever was written: the engines take `--ctx_size` for `--ctx-size`.
    """
    names = (arg.split("=", 1)[0] for arg in args if _is_flag(arg))
    return tuple(name.replace("_", "-") for name in names)


def _is_reserved(flag: str, reserved: Collection[str]) -> bool:
    """Python's engines take `--hos` for `--host`: a beginning counts as the whole."""
    if flag.startswith("--"):
        return any(name.startswith(flag) for name in reserved)
    return flag in reserved


def _is_flag(arg: str) -> bool:
    """`-1` and `-0.5` are values; `-` alone is one too."""
    return arg.startswith("-") and not arg[1:2].isdigit() and arg != "-"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _may_set(name: str, patterns: tuple[str, ...]) -> bool:
    if name in patterns:
        return True
    return _matches(name, patterns) and not _matches(name, _LOADED_CODE)
