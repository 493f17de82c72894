"""A group works with one build, one head and one network, or is not launched."""

import socket
from contextlib import closing

import anyio
import pytest

from llmgw import engines
from llmgw.config.keys import Fabric
from llmgw.engines import group
from llmgw.engines.installed import plain
from llmgw.engines.place import Build, Place
from llmgw.errors import EngineError
from llmgw.supervisor.launch import Launch
from llmgw.wire import Group, Progress
from tests.engines.places import PLACE, member, place, replica

SECOND = place(host="10.0.0.8", ports={"rpc": 20005})


def refused(spans: Group, where: Place = PLACE) -> EngineError:
    with pytest.raises(EngineError) as caught:
        engines.launch(replica(group=spans), where)
    return caught.value


def test_the_head_of_llama_is_told_where_its_members_listen() -> None:
    head = replica(group=member(0))

    launch = engines.launch(head, PLACE)

    assert "--rpc 10.0.0.8:20005" in " ".join(launch.argv)
    assert "--device" not in launch.argv
    assert engines.ports(head) == ("api",)
    assert engines.awaits(head) == (("10.0.0.8", 20005),)


def test_a_member_of_llama_lends_its_devices_where_the_head_looks() -> None:
    """T89: bound to the management address."""
    one = replica(group=member(1), gpus=("GPU-1",))

    assert engines.ports(one) == ("rpc",)
    assert engines.port(one) == 20005
    assert engines.launch(one, SECOND) == Launch(
        argv=(
            "/opt/e/b1/bin/rpc-server",
            *("--host", "10.0.0.8", "--port", "20005", "--threads", "4"),
        ),
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-1"},
        host="10.0.0.8",
        ports={"rpc": 20005},
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "8.8.8.8", "2001:4860::8"])
def test_an_rpc_server_that_anyone_can_reach_is_refused(host: str) -> None:
    """T89: it is open to the network by design."""
    error = refused(member(1), place(SECOND, host=host))

    assert "lets anyone in" in error.what
    assert error.where == "mgmt_addr"


def test_another_build_is_refused_before_launch() -> None:
    """T88: head and member of different builds crash."""
    error = refused(member(1, build_digest="sha256:b2"), SECOND)
    assert error.what == (
        "the build b1 here is sha256:b1, and the group runs sha256:b2"
    )
    assert error.where == "group.build_digest"

    assert "no build in particular" in refused(member(0, build_digest=None)).what

    unproven = place(build=plain("(PATH)", "llamacpp", "/bin/x"))
    assert "here is unknown" in refused(member(0), unproven).what


def test_a_head_that_is_to_be_elsewhere_is_refused() -> None:
    """T30: one address for bind, Ray and dist-init."""
    error = refused(member(0, head="10.9.9.9"))

    assert error.what == "the head is to be at 10.9.9.9, and this node is at 10.0.0.7"


def test_a_group_that_contradicts_itself_is_refused() -> None:
    assert refused(member(2)).what == "rank 2 is not one of 2"
    assert "1 members are named" in refused(member(0, members=("10.0.0.7:1",))).what
    wrong = member(0, members=("10.0.0.7:1", "10.0.0.8"))
    assert refused(wrong).what == "'10.0.0.8' is no host:port"


def test_a_build_without_an_rpc_server_has_no_members() -> None:
    bare = Build(name="x", engine="llamacpp", binary="/x", digest="sha256:b1")

    error = refused(member(1), place(SECOND, build=bare))

    assert error.what == "the build x has no rpc-server"


def test_the_interface_is_one_exact_name_for_every_library() -> None:
    """T31, T32, T33: bond0 is not bond0.2093, nothing is excluded, all are set."""
    env = group.network(member(0, fabric=None), PLACE)

    assert env == {
        "NCCL_SOCKET_IFNAME": "=bond0",
        "GLOO_SOCKET_IFNAME": "bond0",
        "TP_SOCKET_IFNAME": "bond0",
        "UCX_NET_DEVICES": "bond0",
    }
    assert not any("^" in value for value in env.values())


def test_the_adapters_of_a_fabric_are_named_with_their_ports() -> None:
    bare = Fabric(name="ib-a", hcas=("mlx5_0", "mlx5_1"))
    assert group.fabric_hcas(bare) == ("mlx5_0", "mlx5_1")

    ports = Fabric(name="ib-a", hcas=("mlx5_0", "mlx5_1"), ports=(1, 2))
    assert group.fabric_hcas(ports) == ("mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_1:2")


def test_without_an_interface_or_its_fabric_a_group_is_refused() -> None:
    """T32: never lo, never whatever a library would choose."""
    with pytest.raises(EngineError, match=r"interface that holds 10\.0\.0\.7 is not"):
        group.network(member(0), place(interface=None, hcas=("mlx5_0",)))
    with pytest.raises(EngineError, match="labelled with the fabric ib-a"):
        group.network(member(0), PLACE)


async def test_members_are_waited_for_one_by_one() -> None:
    """A head that starts too early serves without the member it could not reach."""
    said: list[Progress] = []
    with closing(bound()) as first, closing(bound()) as second:
        first.listen()
        addresses = (first.getsockname(), second.getsockname())

        def report(progress: Progress) -> None:
            said.append(progress)
            if progress.done == 1:
                second.listen()

        with anyio.fail_after(10):
            await group.reachable(addresses, report, within=8, every=0.01)

    assert said == [
        Progress(what="members", done=0, total=2),
        Progress(what="members", done=1, total=2),
    ]


async def test_a_member_that_does_not_come_is_named() -> None:
    with closing(bound()) as silent:
        host, port = silent.getsockname()

        with pytest.raises(EngineError, match=f"no answer from {host}:{port} for"):
            await group.reachable(((host, port),), lambda _: None, within=0.05)


def bound() -> socket.socket:
    """An address of our own that refuses connections until it listens."""
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    return one


@pytest.mark.parametrize("port", [0, -5, 70000])
async def test_a_member_at_no_port_is_refused_at_once(port: int) -> None:
    with pytest.raises(EngineError, match="is no port"):
        await group.reachable((("127.0.0.1", port),), lambda _: None, within=60.0)


@pytest.mark.parametrize("host", ["a..b", "x y", "x" * 300])
async def test_a_member_of_no_name_does_not_answer(host: str) -> None:
    with pytest.raises(EngineError, match="no answer from"):
        await group.reachable(((host, 9),), lambda _: None, within=0.1)


@pytest.mark.parametrize("member", ["10.0.0.8:\u00b2", "10.0.0.8:" + "9" * 5000])
def test_digits_that_are_no_number_are_no_port(member: str) -> None:
    with pytest.raises(EngineError, match="is no host:port"):
        group.members(
            Group(id="g", rank=0, size=1, head="10.0.0.8", port=1, members=(member,))
        )
