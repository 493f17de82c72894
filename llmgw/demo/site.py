"""A whole site on one machine: the reference control plane, and an agent it leads.

Both are what they are anywhere else; they meet over loopback. All that it makes lies
below one folder, the agent's file included, so that a person can look at each part.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import anyio
import httpx
import msgspec
from msgspec import Struct

from llmgw import files
from llmgw.agent.resolve import Resolved, read
from llmgw.control.settings import Settings
from llmgw.errors import EngineError
from llmgw.wire import UNDECODABLE, Model, Replica, ReplicaStatus

REPLICA = "demo"
ENDS = ("failed", "crash_loop", "stopped")
ANSWER_WITHIN = 120.0
LARGEST = 1 << 20
QUESTION = "What is the capital of France? Answer in one sentence."


class _Message(Struct):
    content: str


class _Choice(Struct):
    message: _Message


class _Completion(Struct):
    """What is looked at of a chat completion."""

    choices: list[_Choice]


class Folders(Struct, frozen=True):
    """Where the site keeps what it makes."""

    root: Path

    @property
    def engines(self) -> Path:
        return self.root / "engines"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def downloads(self) -> Path:
        return self.root / "downloads"

    @property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def file(self) -> Path:
        return self.root / "agent.toml"

    @property
    def desired(self) -> Path:
        return self.root / "desired.json"

    def make(self) -> None:
        for folder in (self.engines, self.weights, self.agent):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.desired.exists():
            files.replace(self.desired, b"{}")


def control(folders: Folders) -> Settings:
    """A leader on loopback, on any free port."""
    return Settings(
        listen="127.0.0.1:0",
        state_dir=folders.root / "control",
        desired_file=folders.desired,
        heartbeat_s=1.0,
    )


def node(folders: Folders, server: str, model_dir: Path | None) -> Resolved:
    """Write this node's file, and read it as any agent does."""
    model_dirs = [str(folders.weights)]
    if model_dir not in (None, folders.weights):
        model_dirs.append(str(model_dir))
    text = f"""# Written by `llmgw up`, anew each time.
server = {json.dumps(server)}
heartbeat_interval = "1s"
state_dir = {json.dumps(str(folders.agent))}
engines_dir = {json.dumps(str(folders.engines))}
weights_cache = {json.dumps(str(folders.weights))}
model_dirs = {json.dumps(model_dirs)}

[supervisor]
on_stop = "stop"
stop_grace = "10s"
"""
    files.replace(folders.file, text.encode())
    return read(folders.file)


def replica(model: str | Path) -> Replica:
    """One llama.cpp server for *model*: a file that lies here, or a source."""
    if isinstance(model, Path):
        named = Model(name=model.stem.lower(), path=str(model))
    else:
        name = model.rstrip("/").rpartition("/")[2] or model
        named = Model(name=name.lower(), source=model)
    # Another model is another wish: what is told of the one of the last time, which is
    # kept on both sides, is not told of this one. At least 1.
    generation = zlib.crc32(msgspec.json.encode(named)) or 1
    return Replica(
        id=REPLICA,
        generation=generation,
        engine="llamacpp",
        model=named,
        context=2048,
    )


def want(folders: Folders, node_id: str, wanted: Replica) -> None:
    """Tell the control plane, through its file."""
    desired = {node_id: [wanted]}
    files.replace(folders.desired, msgspec.json.encode(desired))


async def ask(status: ReplicaStatus, model: str, question: str) -> str:
    """One chat completion, from the engine itself. EngineError if there is none."""
    host = f"[{status.address}]" if ":" in (status.address or "") else status.address
    url = f"http://{host}:{status.ports['api']}/v1/chat/completions"
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 48,
        "temperature": 0,
    }
    try:
        with anyio.fail_after(ANSWER_WITHIN):
            data = await _posted(url, body)
        content = msgspec.json.decode(data, type=_Completion).choices[0].message.content
    except TimeoutError as error:
        what = f"gave no completion in {ANSWER_WITHIN:g} s"
        raise EngineError(what, where=url) from error
    except (httpx.HTTPError, LookupError, ValueError, *UNDECODABLE) as error:
        raise EngineError(f"gave no completion: {error}", where=url) from error
    # It goes to a terminal, which a model's text is not to steer.
    plain = (c if c.isprintable() or c == "\n" else "\ufffd" for c in content.strip())
    return "".join(plain)


async def _posted(url: str, body: Mapping[str, object]) -> bytes:
    """ValueError for an answer that does not end."""
    found = bytearray()
    # Past any proxy: the engine is on this machine.
    async with (
        httpx.AsyncClient(timeout=ANSWER_WITHIN, trust_env=False) as client,
        client.stream(
            "POST", url, json=body, headers={"Accept-Encoding": "identity"}
        ) as answer,
    ):
        answer.raise_for_status()
        async for piece in answer.aiter_raw():
            found += piece
            if len(found) > LARGEST:
                raise ValueError(f"its answer is of more than {LARGEST} bytes")
    return bytes(found)
