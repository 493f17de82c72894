"""A real llama-server, started as the agent starts it."""

import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest

from llmgw import engines
from llmgw.config import keys
from llmgw.engines import group, llamacpp
from llmgw.engines.place import Build, Place
from llmgw.reconcile import Running, Start, Stop, plan
from llmgw.supervisor.health import client, probe
from llmgw.supervisor.launch import Launch
from llmgw.supervisor.order import Order
from llmgw.supervisor.supervisor import Supervisor
from llmgw.wire import (
    Group,
    Lora,
    Model,
    Progress,
    Replica,
    ReplicaStatus,
    Restart,
    Wanted,
    digest,
)
from tests.engines.places import member, place
from tests.fakes.ports import free_block, free_port
from tests.models import tiny_lora

HOST = "127.0.0.1"


class Node:
    """A supervisor, and as much of an agent as it takes to give it orders."""

    def __init__(self, state_dir: Path, build: Build, model: Path) -> None:
        first = free_block(40)
        settings = keys.Supervisor(
            backend="process",
            port_range=f"{first}-{first + 39}",
            port_quarantine=0.0,
            stop_grace=5.0,
            restart_base=0.05,
            health_interval=0.05,
        )
        self.supervisor = Supervisor(settings, state_dir)
        self.build = build
        self.weights = {"tiny": str(model)}
        self.launches: dict[str, Launch] = {}

    def want(self, replica: Replica) -> None:
        self.supervisor.want(
            Order(
                id=replica.id,
                generation=replica.generation,
                digest=wanted(replica).digest,
                prepare=partial(self._prepare, replica),
                ports=engines.ports(replica),
                port=engines.port(replica),
                restart=replica.restart,
            )
        )

    async def _prepare(
        self,
        replica: Replica,
        ports: Mapping[str, int],
        report: Callable[[Progress], None],
    ) -> Launch:
        settings = engines.admit(replica, keys.Engines())
        await group.reachable(engines.awaits(replica), report, within=10, every=0.02)
        place = Place(
            settings=settings,
            build=self.build,
            ports=dict(ports),
            host=HOST,
            weights=self.weights,
            threads=1,
            interface="lo",
        )
        launch = engines.launch(replica, place)
        self.launches[replica.id] = launch
        return launch

    async def until(
        self, true: Callable[[dict[str, ReplicaStatus]], bool]
    ) -> dict[str, ReplicaStatus]:
        seen = -1
        with anyio.fail_after(20):
            while True:
                now = {one.id: one for one in self.supervisor.statuses()}
                if true(now):
                    return now
                seen, _ = await self.supervisor.changed.newer_than(seen)

    async def ready(self, *ids: str) -> dict[str, ReplicaStatus]:
        return await self.until(
            lambda now: all(id in now and now[id].state == "ready" for id in ids)
        )


@asynccontextmanager
async def node(
    state_dir: Path, build: Build, model: Path
) -> AsyncGenerator[Node, None]:
    one = Node(state_dir, build, model)
    async with anyio.create_task_group() as tasks:
        await tasks.start(one.supervisor.run)
        try:
            yield one
        finally:
            with anyio.CancelScope(shield=True), anyio.fail_after(20):
                await one.supervisor.stop_all()
            tasks.cancel_scope.cancel()


def wanted(replica: Replica) -> Wanted:
    return Wanted(replica, digest(msgspec.json.encode(replica)))


def replica(**changes: object) -> Replica:
    one = Replica(
        id="tiny-0",
        generation=1,
        engine="llamacpp",
        model=Model(name="tiny", source="tiny"),
        context=256,
        parallel=2,
    )
    return msgspec.structs.replace(one, **changes)


async def ask(port: int, path: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        url = f"http://{HOST}:{port}{path}"
        answer = await (client.post(url, json=body) if body else client.get(url))
        return answer.raise_for_status()


async def test_it_is_what_it_was_told_to_be(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    """T15, T86: ready is a real 200, and every number was said."""
    async with node(tmp_path, llama, tiny) as here:
        here.want(replica())
        status = (await here.ready("tiny-0"))["tiny-0"]
        port = status.ports["api"]

        assert status.pid is not None
        proc = anyio.Path("/proc", str(status.pid))
        argv = (await (proc / "cmdline").read_bytes()).decode().split("\0")[:-1]
        assert tuple(argv) == here.launches["tiny-0"].argv
        assert (await (proc / "comm").read_text()).strip() == "llama-server"
        [model] = (await ask(port, "/v1/models")).json()["data"]
        assert model["id"] == "tiny"
        slots = (await ask(port, "/slots")).json()
        assert [slot["n_ctx"] for slot in slots] == [256, 256]


def test_every_flag_that_is_written_or_kept_from_others_is_one_of_its_own(
    llama: Build,
) -> None:
    """A renamed flag ends every start; a renamed reserved one lets a replica set it."""
    lora = (Lora(source="lora"),)
    eyes = Model(name="eyes", source="eyes")
    asked = [
        replica(lora=lora, mmproj=eyes, embeddings=True, gpus=("GPU-1",)),
        replica(group=member(0, head=HOST, build_digest=llama.digest)),
    ]
    here = place(
        host=HOST, build=llama, weights=dict.fromkeys(("tiny", "lora", "eyes"), "/w")
    )
    command = [llama.binary, "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", said))

    argv = [word for one in asked for word in engines.launch(one, here).argv]
    flags = {word for word in argv if word.startswith("--")}
    assert {"--rpc", "--lora-scaled", "--mmproj", "--offline"} <= flags
    assert flags <= known
    assert known >= llamacpp.RESERVED


async def test_its_progress_shows_while_it_answers(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    """T91: the counters that tell busy from stuck move within one answer."""
    async with node(tmp_path, llama, tiny) as here:
        here.want(replica(context=2048))
        port = (await here.ready("tiny-0"))["tiny-0"].ports["api"]
        health = here.launches["tiny-0"].health
        assert health is not None
        assert health.metrics_path is not None
        seen: list[float] = []
        answered = anyio.Event()

        async def answer() -> None:
            body = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True}
            await ask(port, "/v1/completions", **body)
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            while not answered.is_set():
                text = (await ask(port, str(health.metrics_path))).text
                if _metric(text, str(health.requests_metric)) > 0:
                    seen.append(_metric(text, health.progress_metrics[0]))

        assert len(set(seen)) >= 2, "it moved before the answer was there"
        assert seen == sorted(seen)


@pytest.mark.parametrize("embeddings", [False, True])
async def test_it_is_asked_for_one_token(
    llama: Build, tiny: Path, tmp_path: Path, *, embeddings: bool
) -> None:
    """T91: so that slow is told from stuck; one that embeds gives it, too."""
    async with node(tmp_path, llama, tiny) as here:
        here.want(replica(embeddings=embeddings))
        port = (await here.ready("tiny-0"))["tiny-0"].ports["api"]
        health = here.launches["tiny-0"].health
        assert health is not None
        assert health.probe is not None
        base = f"http://{HOST}:{port}"

        async with client(20) as asker:
            gave = await probe(asker, health.probe, base, within=20)

    assert gave is True


def _metric(text: str, name: str) -> float:
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no {name} in {text}")


async def test_an_embedding_model_embeds(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    async with node(tmp_path, llama, tiny) as here:
        here.want(replica(embeddings=True))
        port = (await here.ready("tiny-0"))["tiny-0"].ports["api"]

        # This model pools nothing: a vector for each token, and no OpenAI route.
        [one] = (await ask(port, "/embeddings", content="hello")).json()

        assert {len(vector) for vector in one["embedding"]} == {64}


async def test_an_adapter_changes_what_is_said_as_far_as_its_scale(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    tiny_lora.write(tmp_path / "a.gguf")
    said: list[str] = []
    for scale in (None, 0.0, 1.0):
        lora = () if scale is None else (Lora(source="lora", scale=scale),)
        async with node(tmp_path, llama, tiny) as here:
            here.weights["lora"] = str(tmp_path / "a.gguf")
            here.want(replica(lora=lora))
            port = (await here.ready("tiny-0"))["tiny-0"].ports["api"]
            body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}
            answer = (await ask(port, "/v1/completions", **body)).json()
            said.append(answer["choices"][0]["text"])

    without, none_of_it, all_of_it = said
    assert none_of_it == without
    assert all_of_it != without


async def test_a_projector_that_is_none_is_said_by_the_engine(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    """No tiny projector is to be had; that it is read shows by what is refused."""
    (tmp_path / "eyes.gguf").write_bytes(b"GGUF")
    async with node(tmp_path, llama, tiny) as here:
        here.weights["eyes"] = str(tmp_path / "eyes.gguf")
        here.want(replica(mmproj=Model(name="eyes", source="eyes")))
        # It may exit before its own log thread has written why: at one of its tries.
        await here.until(lambda now: "eyes.gguf" in str(now["tiny-0"].reason))


async def test_a_group_serves_together_and_restarts_together(
    llama: Build, tiny: Path, tmp_path: Path
) -> None:
    """T90: a member dies; the head, which went on saying ok, goes with it."""
    rpc = free_port()
    spans = Group(
        id="g",
        rank=0,
        size=2,
        head=HOST,
        port=0,
        members=(f"{HOST}:0", f"{HOST}:{rpc}"),
        build_digest=llama.digest,
    )
    pause = Restart(base_s=0.5, at_once=False)
    head = replica(id="head", group=spans, restart=pause)
    second = msgspec.structs.replace(spans, rank=1)
    member = replica(id="member", group=second, restart=pause)
    both = (wanted(head), wanted(member))

    async with node(tmp_path, llama, tiny) as here:

        async def reconcile() -> None:
            seen = -1
            while True:
                seen, _ = await here.supervisor.changed.newer_than(seen)
                for action in plan(both, _running(here), draining=False):
                    if isinstance(action, Start):
                        here.want(action.wanted.replica)
                    elif isinstance(action, Stop):
                        here.supervisor.unwant(action.name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reconcile)
            # The head first: it has to wait for its member all the same.
            here.want(head)
            before = await here.ready("head", "member")
            assert before["member"].ports == {"rpc": rpc}
            await _completes(before["head"].ports["api"])

            pid = before["member"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            after = await here.until(
                lambda now: all(
                    now[id].state == "ready" and now[id].pid != before[id].pid
                    for id in now
                )
            )
            await _completes(after["head"].ports["api"])
            tasks.cancel_scope.cancel()


async def _completes(port: int) -> None:
    body = {"prompt": "x", "max_tokens": 5, "ignore_eos": True}
    answer = (await ask(port, "/v1/completions", **body)).json()
    assert answer["usage"]["completion_tokens"] == 5


def _running(here: Node) -> tuple[Running, ...]:
    return tuple(
        Running(one.id, one.generation, one.spec_digest, one.state)
        for one in here.supervisor.statuses()
    )


async def test_a_head_whose_member_does_not_come_fails_and_says_which(
    llama: Build, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would serve without it, on memory that was not meant to hold all of it."""
    rpc = free_port()
    spans = Group(
        id="g",
        rank=0,
        size=2,
        head=HOST,
        port=0,
        members=(f"{HOST}:0", f"{HOST}:{rpc}"),
        build_digest=llama.digest,
    )
    monkeypatch.setattr(group, "reachable", partial(_at_once, group.reachable))
    async with node(tmp_path, llama, tiny) as here:
        here.want(replica(group=spans))
        status = (await here.until(lambda now: now["tiny-0"].state == "failed"))[
            "tiny-0"
        ]

    assert f"{HOST}:{rpc}" in str(status.reason)


async def _at_once(
    reachable: Callable[..., object], *arguments: object, **_: object
) -> None:
    await reachable(*arguments, within=0.1)  # pyright: ignore[reportGeneralTypeIssues]
