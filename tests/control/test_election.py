"""Election on a real three-member etcd."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest

from llmgw import wire
from llmgw.config.keys import Tls
from llmgw.control.election import Elected, clock
from llmgw.control.etcd import Etcd as EtcdClient
from llmgw.control.etcd_client import Client
from llmgw.control.etcd_state import Opened
from llmgw.control.settings import Etcd
from tests.control.asking import Asking, refusal, register
from tests.control.conftest import Serving

ETCD = shutil.which("etcd")
pytestmark = [
    pytest.mark.skipif(ETCD is None, reason="needs etcd: apt install etcd-server"),
    pytest.mark.xdist_group("etcd"),
]
TTL = 2


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = _free_ports(6)
        self.endpoints = tuple(f"http://127.0.0.1:{p}" for p in self._ports[:3])
        self._members = [self._start(number) for number in range(3)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        assert ETCD is not None
        peers = [f"http://127.0.0.1:{port}" for port in self._ports[3:]]
        client, peer = self.endpoints[number], peers[number]
        arguments = {
            "name": f"m{number}",
            "data-dir": str(self._folder / f"m{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{n}={url}" for n, url in enumerate(peers)),
            "heartbeat-interval": "50",
            "election-timeout": "500",
        }
        with (self._folder / f"m{number}.log").open("wb") as log:
            return subprocess.Popen(
                [ETCD, *(f"--{key}={value}" for key, value in arguments.items())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    async def healthy(self) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            with anyio.fail_after(20):
                for endpoint in self.endpoints:
                    while not await _is_well(client, endpoint):
                        await anyio.sleep(0.05)

    def signal(self, members: range, what: signal.Signals) -> None:
        for number in members:
            os.kill(self._members[number].pid, what)

    def stop(self) -> None:
        for member in self._members:
            member.kill()
            member.wait()


async def _is_well(client: httpx.AsyncClient, endpoint: str) -> bool:
    try:
        answer = await client.get(f"{endpoint}/health", timeout=1)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and json.loads(answer.content)["health"] == "true"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def running() -> Generator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="llmgw-etcd-") as folder:
        cluster = Cluster(Path(folder))
        yield cluster
        cluster.stop()


@pytest.fixture
async def cluster(running: Cluster) -> Cluster:
    await running.healthy()
    return running


@pytest.fixture
def etcd(cluster: Cluster, request: pytest.FixtureRequest) -> Etcd:
    return Etcd(endpoints=cluster.endpoints, prefix=f"{request.node.name}/", ttl=TTL)


async def leads(plane: Asking) -> bool:
    return (await plane.client.get("/v1/leader")).json()["leader"]


async def until_one_leads(*planes: Asking, within: float = 15) -> Asking:
    with anyio.fail_after(within):
        while True:
            leaders = [plane for plane in planes if await leads(plane)]
            assert len(leaders) < 2
            if leaders:
                return leaders[0]
            await anyio.sleep(0.02)


async def test_one_leads_and_the_next_knows_what_is_wanted(
    serving: Serving, etcd: Etcd
) -> None:
    more = {"role": "etcd", "etcd": etcd}
    async with (
        serving(**more, url="http://one") as one,
        serving(**more, url="http://two") as two,
    ):
        first = await until_one_leads(one, two)
        second = two if first is one else one
        accepted = await first.register()
        await first.want("n1", {"id": "a", "engine": "command"})
        with anyio.fail_after(5):
            while (
                "leader"
                not in (answer := await second.post("/v1/register", register())).json()
            ):
                await anyio.sleep(0.02)
        first.leave()
        with anyio.fail_after(2):
            while not await leads(second):
                await anyio.sleep(0.02)
        again = await second.register(epoch_seen=accepted.epoch)
        async with second.stream(again.session) as lines:
            snapshot = await lines.snapshot()

    assert refusal(answer) == (421, "not_leader")
    assert answer.json()["leader"] == ("http://one" if first is one else "http://two")
    assert again.epoch > accepted.epoch
    assert [wanted.replica.id for wanted in snapshot.wanted()] == ["a"]


async def test_without_quorum_nobody_leads_before_the_lease_is_anothers(
    serving: Serving, etcd: Etcd, cluster: Cluster
) -> None:
    async with serving(role="etcd", etcd=etcd) as plane:
        await until_one_leads(plane)
        led, cut = 0.0, anyio.current_time()
        cluster.signal(range(2), signal.SIGSTOP)
        try:
            with anyio.fail_after(TTL + 3):
                asked = anyio.current_time()
                while await leads(plane):
                    led = asked - cut
                    await anyio.sleep(0.02)
                    asked = anyio.current_time()
            answer = await plane.post("/v1/register", register())
        finally:
            cluster.signal(range(2), signal.SIGCONT)
        await until_one_leads(plane)
        again = await plane.register()

    assert led < TTL  # when it was last asked and still led, however late it answered
    assert refusal(answer) == (421, "not_leader")
    assert again.epoch > 0


async def test_a_floor_holds_for_all_and_stays(serving: Serving, etcd: Etcd) -> None:
    async with serving(role="etcd", etcd=etcd, epoch_floor=10**9) as plane:
        await until_one_leads(plane)
        first = await plane.register()
    async with serving(role="etcd", etcd=etcd) as plane:
        await until_one_leads(plane)
        second = await plane.register()

    assert 10**9 < first.epoch < second.epoch


async def test_what_is_damaged_in_etcd_is_told_and_mended_without_a_restart(
    serving: Serving, etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    """Led without it, the next change would stop what the node has."""
    status = wire.ReplicaStatus(id="a", generation=1, state="ready", since_s=1)
    session = Opened(epoch=1, register=register("n2", replicas=(status,)))
    desired = f"{etcd.prefix}desired/n1"
    async with Client(Tls()) as http, serving(role="etcd", etcd=etcd) as plane:
        cluster = EtcdClient(http, etcd.endpoints, 1.0)
        await until_one_leads(plane)
        await plane.want("n1", {"id": "a", "engine": "command"})
        kept = await cluster.get(desired)
        assert kept
        damaged = {
            f"{etcd.prefix}epoch-floor": b"0",
            desired: kept.value,
        }
        for key in damaged:
            await cluster.put(key, b"x")
        # A state that only a newer version knows: of a session nothing is led by.
        last = msgspec.json.encode(session)
        newer = last.replace(b'"ready"', b'"hibernating"')
        assert newer != last
        await cluster.put(f"{etcd.prefix}sessions/n2", newer)
        async with serving(role="etcd", etcd=etcd) as other:
            plane.leave()
            for key, mended in damaged.items():
                with anyio.fail_after(15):
                    while f"etcd {key}" not in caplog.text:
                        await anyio.sleep(0.02)
                assert not await leads(other)
                await cluster.put(key, mended)
            await until_one_leads(other)
            wanted = (await other.admin("GET", "nodes/n1/replicas")).json()

    assert [one["id"] for one in wanted["replicas"]] == ["a"]
    assert caplog.text.count(f"etcd {desired}") == 1


async def test_who_is_overtaken_gives_the_lead_back(
    serving: Serving, etcd: Etcd
) -> None:
    async with serving(role="etcd", etcd=etcd) as plane:
        await until_one_leads(plane)
        answer = await plane.post("/v1/register", register(epoch_seen=10**9))
        then = await plane.post("/v1/register", register())

    assert refusal(answer) == (409, "stale_epoch")
    assert refusal(then) == (421, "not_leader")


async def test_the_lead_ends_with_the_lease_before_any_task_has_run(
    etcd: Etcd,
) -> None:
    """As after a suspension: time has passed, and the first thing run is a request."""
    passed, leads = 0.0, True
    async with Client(Tls()) as http:
        cluster = EtcdClient(http, etcd.endpoints, 1.0)
        elected = Elected(
            cluster,
            etcd.prefix,
            ttl=TTL,
            url=None,
            floor=0,
            now=lambda: clock() + passed,
        )
        async with anyio.create_task_group() as group:
            await group.start(elected.run)
            with anyio.fail_after(10):
                while not elected.leads():
                    await anyio.sleep(0.01)
            passed = TTL * 0.95
            leads = elected.leads()
            group.cancel_scope.cancel()

    assert elected.lead.number > 0
    assert not leads


class Program:
    """`llmgw control` as a process of its own, which can be frozen and killed."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        folder.mkdir()
        self.url = f"http://127.0.0.1:{_free_ports(1)[0]}"
        arguments = {
            "listen": self.url.removeprefix("http://"),
            "state-dir": str(folder),
            "role": "etcd",
            "etcd": ",".join(etcd.endpoints),
            "etcd-prefix": etcd.prefix,
            "etcd-ttl": str(etcd.ttl),
            "admin-socket": str(folder.parent / f"{folder.name}.sock"),
        }
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "llmgw", "control"]
                + [f"--{key}={value}" for key, value in arguments.items()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    async def leads(self, client: httpx.AsyncClient) -> bool:
        try:
            answer = await client.get(f"{self.url}/v1/leader", timeout=1)
        except httpx.HTTPError:
            return False
        return answer.json()["leader"]


@pytest.fixture
def programs(etcd: Etcd) -> Generator[list[Program]]:
    with tempfile.TemporaryDirectory(prefix="llmgw-cp-") as folder:
        found = [Program(Path(folder) / name, etcd) for name in ("a", "b")]
        yield found
        for program in found:
            program.process.kill()
            program.process.wait()


async def test_who_was_frozen_accepts_nobody_when_it_wakes(
    programs: list[Program],
) -> None:
    """The other leads by then; and when that one is killed, the first leads again."""
    async with httpx.AsyncClient(trust_env=False) as client:
        old = await elected(client, programs)
        new = next(program for program in programs if program is not old)
        old.process.send_signal(signal.SIGSTOP)
        answers: list[httpx.Response] = []

        async def knock() -> None:
            # Lies in the socket until the frozen one wakes: the first it answers.
            body = msgspec.json.encode(register())
            url = f"{old.url}/v1/register"
            answers.append(await client.post(url, content=body, timeout=30))

        async with anyio.create_task_group() as group:
            group.start_soon(knock)
            await elected(client, [new])
            old.process.send_signal(signal.SIGCONT)
        new.process.kill()
        await elected(client, [old])

    assert refusal(answers[0]) == (421, "not_leader")


async def elected(client: httpx.AsyncClient, programs: list[Program]) -> Program:
    with anyio.fail_after(20):
        while True:
            for program in programs:
                if await program.leads(client):
                    return program
            await anyio.sleep(0.02)
