"""Any program that the node's own file names, run as a replica.

The words `{host}`, `{port}`, `{model}` and `{id}` in its arguments and variables are
replaced; every other brace stays as it is, for JSON among the arguments.
"""

from llmgw.engines.group import Address
from llmgw.engines.place import Place
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Health, Launch, Limits
from llmgw.wire import Replica

RESERVED: frozenset[str] = frozenset()


def ports(replica: Replica) -> tuple[str, ...]:
    """The names of the ports that this replica needs."""
    return ("api",)


def port(replica: Replica) -> int | None:
    """The port that was asked for; None: any that is free."""
    return replica.port


def awaits(replica: Replica) -> tuple[Address, ...]:
    """Nobody has to be up before it."""
    return ()


def launch(replica: Replica, place: Place) -> Launch:
    """The program of the node's file, with the file's arguments first.

    It is asked for its health at /health, as all engines here are.
    """
    if replica.group is not None:
        raise EngineError("the engine command does not span nodes", where="group")
    words = {
        "{host}": place.host,
        "{port}": str(place.ports["api"]),
        "{id}": replica.id,
    }
    if replica.model is not None:
        words["{model}"] = place.weights_of(replica.model)

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    args = (*place.settings.args, *replica.args)
    env = {**place.settings.env, **replica.env}
    return Launch(
        argv=(place.build.binary, *(filled(arg) for arg in args)),
        env={name: filled(value) for name, value in env.items()},
        host=place.host,
        ports={"api": place.ports["api"]},
        health=Health(path="/health"),
        limits=Limits(memory=replica.memory, cpus=replica.cpus, cpuset=place.cpuset),
    )
