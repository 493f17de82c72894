"""What an operator sends, checked strictly and with every fault named at once.

The wire is lenient and this door is not: a field that nobody knows is a typo here. The
models are made from the messages of wire.py, so that a field is written once.
"""

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, cast, get_args, get_origin
from urllib.parse import quote

import msgspec
from msgspec import Struct
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)

from llmgw.config import checks
from llmgw.wire import (
    ID_PATTERN,
    MOST_REPLICAS,
    Build,
    Disconnect,
    EngineKind,
    Group,
    Lora,
    Model,
    Replica,
    Restart,
)

# As etcd counts, and the kernel: a number beyond is a slip of the hand.
MOST = 2**63 - 1
# Of the file that keeps what is wanted on a node, but for what is added to it.
LONGEST_NAME = 200


def _no_nul(text: str) -> str:
    """No argument, variable or path of a process can hold one."""
    if "\0" in text:
        raise ValueError("holds a NUL character")
    return text


_TEXT: Any = Annotated[str, AfterValidator(_no_nul)]
_NAME: Any = Annotated[str, Field(min_length=1), AfterValidator(_no_nul)]
_WHOLE: Any = Annotated[int, Field(ge=-MOST, le=MOST)]
# Beyond, JSON has no word for it: an agent would refuse the whole snapshot.
_NUMBER: Any = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]
_CPUS: Any = Annotated[float, Field(allow_inf_nan=False, gt=0, le=MOST)]
_COUNT: Any = Annotated[int, Field(gt=0, le=MOST)]
_SECONDS: Any = Annotated[float, Field(allow_inf_nan=False, ge=0, le=MOST)]
_REV: Any = Annotated[int | None, Field(ge=-MOST, le=MOST)]
_PORT: Any = Annotated[int, Field(ge=1, le=65535)]

# What the wire leaves to the reader and a person gets told at once.
_NARROWER: dict[tuple[type[Struct], str], Any] = {
    (Replica, "id"): Annotated[str, Field(pattern=ID_PATTERN)],
    # Left out: counted here (state.numbered).
    (Replica, "generation"): _COUNT | None,
    (Replica, "engine"): EngineKind,
    (Replica, "cpus"): _CPUS | None,
    (Replica, "memory"): _COUNT | None,
    (Replica, "context"): _COUNT | None,
    (Replica, "parallel"): _COUNT | None,
    (Replica, "port"): _PORT | None,
    (Restart, "base_s"): _SECONDS | None,
    (Restart, "max_s"): _SECONDS | None,
    (Restart, "crash_loop_after"): _COUNT | None,
    (Disconnect, "stop_after"): _SECONDS | None,
    (Model, "name"): _NAME,
    (Lora, "source"): _NAME,
    (Group, "rank"): Annotated[int, Field(ge=0, le=MOST)],
    (Group, "size"): _COUNT,
    # Left out: filled in here (group.py).
    (Group, "head"): _TEXT | None,
    (Group, "port"): _PORT | None,
    (Build, "name"): Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")],
    (Build, "engine"): EngineKind,
    (Build, "url"): Annotated[
        str, Field(pattern=r"^(https?|file)://"), AfterValidator(_no_nul)
    ],
    (Build, "sha256"): Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")],
}
_OURS = {(Replica, "generation"), (Group, "head"), (Group, "port")}
# Text is text and a number is a number: "8" for a port is a slip worth telling.
_STRICT = ConfigDict(extra="forbid", strict=True)
_made: dict[type[Struct], type[BaseModel]] = {}


def model_of(struct: type[Struct]) -> type[BaseModel]:
    """The pydantic model with the fields, types and defaults of *struct*."""
    if struct not in _made:
        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(struct):
            kind = _NARROWER.get((struct, field.name)) or _translated(field.type)
            optional = not field.required or (struct, field.name) in _OURS
            default = field.default if field.default is not msgspec.NODEFAULT else None
            fields[field.name] = (kind, default if optional else ...)
        _made[struct] = create_model(
            struct.__name__, __config__=_STRICT, __doc__=struct.__doc__, **fields
        )
    return _made[struct]


def _translated(kind: Any) -> Any:
    """*kind* with every Struct in it replaced by its model."""
    if isinstance(kind, type) and issubclass(cast("type[object]", kind), Struct):
        return model_of(cast("type[Struct]", kind))
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return Union[tuple(_translated(one) for one in inner)]  # noqa: UP007 -- computed
    if origin is tuple:
        # JSON has lists; strict mode would hold out for a tuple.
        return types.GenericAlias(list, (_translated(inner[0]),))
    if origin is dict:
        return types.GenericAlias(dict, tuple(_translated(one) for one in inner))
    return _PLAIN.get(kind, kind)


_PLAIN: dict[Any, Any] = {str: _TEXT, int: _WHOLE, float: _NUMBER}


class Question(BaseModel):
    """Something to ask a node: the kind of an `ask`, and what it takes."""

    model_config = _STRICT
    kind: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,31}$")]
    args: dict[str, Any] = {}
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0


class Want(Struct, frozen=True):
    """What is wanted on a node, as the operator wrote it.

    *rev*: only if nobody has changed it since that one.
    """

    replicas: tuple[dict[str, Any], ...]
    builds: tuple[Build, ...] = ()
    drain: bool = False
    rev: int | None = None


def _listed(struct: type[Struct]) -> Any:
    return types.GenericAlias(list, (model_of(struct),))


_BY_NODE: TypeAdapter[dict[str, Any]] = TypeAdapter(
    cast("type[dict[str, Any]]", types.GenericAlias(dict, (str, _listed(Replica))))
)
_WANT = create_model(
    "Want",
    __config__=_STRICT,
    replicas=(_listed(Replica), ...),
    builds=(_listed(Build), []),
    drain=(bool, False),
    rev=(_REV, None),
)


class Flaw(Struct, frozen=True, omit_defaults=True):
    """One thing wrong in a body, and where it stands: `replicas[0].model.name`."""

    where: str
    what: str


def want(document: bytes, node_id: str) -> Want | list[Flaw]:
    """The body of a PUT of what is wanted; or everything that is wrong with it."""
    if flaw := misnamed(node_id):
        return [flaw]
    try:
        _WANT.model_validate_json(document)
    except ValidationError as error:
        return flaws(error)
    found = msgspec.json.decode(document, type=Want)
    return refused(found.replicas, "replicas") or found


def by_node(document: bytes) -> dict[str, list[dict[str, Any]]] | list[Flaw]:
    """A file of `{node_id: [Replica]}`; or everything that is wrong with it."""
    try:
        _BY_NODE.validate_json(document)
    except ValidationError as error:
        return flaws(error)
    found = msgspec.json.decode(document, type=dict[str, list[dict[str, Any]]])
    names = [flaw for node_id in found if (flaw := misnamed(node_id))]
    return [
        *names,
        *(flaw for node_id, each in found.items() for flaw in refused(each, node_id)),
    ] or found


def misnamed(node_id: str) -> Flaw | None:
    """Why no agent can have this name, or none of ours keep what is wanted of it."""
    if complaint := checks.name(node_id):
        return Flaw("node_id", complaint.what)
    if len(quote(node_id, safe="")) > LONGEST_NAME:
        return Flaw("node_id", f"{node_id[:20]}… is too long, {len(node_id)} letters")
    return None


def question(document: bytes) -> Question | list[Flaw]:
    try:
        asked = Question.model_validate_json(document)
    except ValidationError as error:
        return flaws(error)
    return [*_unsayable(asked.args, "args")] or asked


def _unsayable(value: object, where: str) -> Iterator[Flaw]:
    """What pydantic takes for JSON where anything may stand, and JSON does not have."""
    if isinstance(value, dict):
        for key, one in cast("dict[str, object]", value).items():
            yield from _unsayable(one, f"{where}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(cast("list[object]", value)):
            yield from _unsayable(one, f"{where}[{number}]")
    elif isinstance(value, int | float) and not -MOST <= value <= MOST:
        yield Flaw(where, f"is no number below {MOST}")


def refused(replicas: Sequence[dict[str, Any]], where: str) -> list[Flaw]:
    """For what each agent refuses the whole: too many, or an id that stands twice."""
    if len(replicas) > MOST_REPLICAS:
        what = f"{len(replicas)} replicas are more than {MOST_REPLICAS} for one node"
        return [Flaw(where, what)]
    seen: set[object] = set()
    found: list[Flaw] = []
    for number, replica in enumerate(replicas):
        if replica["id"] in seen:
            what = f"{replica['id']} stands twice"
            found.append(Flaw(f"{where}[{number}].id", what))
        seen.add(replica["id"])
    return found


def flaws(error: ValidationError) -> list[Flaw]:
    """Every fault that pydantic found, in words of ours."""
    found: list[Flaw] = []
    for one in error.errors(include_url=False):
        where = ""
        for step in one["loc"]:
            where += f"[{step}]" if isinstance(step, int) else f".{step}"
        text = one["msg"].removeprefix("Value error, ")
        what = _WORDS.get(one["type"]) or text[:1].lower() + text[1:]
        found.append(Flaw(where.removeprefix("."), what))
    return found


_WORDS = {
    "extra_forbidden": "no such field",
    "missing": "is missing",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number, and not infinite",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}
