"""The agent's own link with the reference control plane: the protocol's two ends."""

from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from tests.control.conftest import Serving
from tests.fakes.certified import authority, certificates, control_plane
from tests.fakes.linked import connected, link, running, until, wanted
from tests.fakes.node import FakeNode

A = {"id": "a", "engine": "command"}


async def test_the_lead_goes_from_one_to_the_other_and_nothing_is_unwanted(
    serving: Serving, tmp_path: Path
) -> None:
    """T1, T11, T22: `bye`, a higher epoch, what runs goes up, and no empty snapshot."""
    roles = [tmp_path / "one.role", tmp_path / "two.role"]
    node = FakeNode()

    def lead(first: str, second: str) -> None:
        for file, line in zip(roles, (first, second), strict=True):
            new = file.with_suffix(".new")
            new.write_text(line + "\n")
            new.replace(file)

    await anyio.to_thread.run_sync(lead, "leader 1", "standby")
    follow = partial(serving, role="follow-file")
    async with follow(role_file=roles[0]) as one, follow(role_file=roles[1]) as two:
        await one.want("n1", A)
        mine = link(tmp_path, one.url, two.url, node=node)
        async with running(mine):
            before = await connected(mine)
            await wanted(mine, lambda desired: len(desired.wanted) == 1)
            number = mine.desired.number
            node.runs("a", pid=7)
            await anyio.to_thread.run_sync(lead, f"standby {two.url}", "leader 2")
            after = await until(mine, lambda now: now.server == two.url)
            seen = (await two.admin("GET", "nodes/n1")).json()

            assert mine.desired.number == number

    assert (before.server, before.epoch) == (one.url, 1)
    assert (after.server, after.epoch) == (two.url, 2)
    assert [replica["pid"] for replica in seen["replicas"]] == [7]


async def test_a_control_plane_that_starts_again_is_joined_with_its_next_epoch(
    serving: Serving, tmp_path: Path
) -> None:
    """T11, T20: and it knows what is wanted from its own disk."""
    kept = tmp_path / "kept"
    async with serving(state_dir=kept) as plane:
        await plane.want("n1", A)
        port = plane.url.rpartition(":")[2]
        mine = link(tmp_path, plane.url)
        async with running(mine, limit=20) as group:
            first = await connected(mine)
            await wanted(mine, lambda desired: not desired.kept)
            plane.leave()
            await until(mine, lambda now: now.state == "disconnected")
            async with serving(state_dir=kept, listen=f"127.0.0.1:{port}") as again:
                second = await connected(mine)
                desired = await wanted(mine, lambda desired: desired.epoch == 2)
                assert again.url == plane.url
            group.cancel_scope.cancel()

    assert (first.epoch, second.epoch) == (1, 2)
    assert [item.replica.id for item in desired.wanted] == ["a"]


async def test_a_second_machine_of_the_name_is_told_so_and_the_first_stays(
    serving: Serving, tmp_path: Path
) -> None:
    """T41."""
    async with serving() as plane:
        mine = link(tmp_path / "one", plane.url)
        copy = link(tmp_path / "two", plane.url, machine_id="m2")
        async with running(mine):
            await connected(mine)
            async with running(copy):
                await until(
                    copy, lambda now: "node_in_use" in now.tried.get(plane.url, "")
                )
                (problem,) = (one for one in copy.problems() if one.where == plane.url)

            assert mine.status.value.sessions == 1

    assert problem.code == "node_in_use"
    assert "another machine" in problem.what


async def test_a_certificate_of_another_name_is_refused_over_tls(
    serving: Serving, tmp_path: Path
) -> None:
    """403 identity_mismatch: said with both names; and the right one is let in."""
    in_thread = anyio.to_thread.run_sync
    folder = await in_thread(authority, tmp_path / "pki")
    own = await in_thread(control_plane, folder)
    wrong = await in_thread(certificates, folder, "n2")
    right = await in_thread(certificates, folder, "n1")
    context = await in_thread(right.context)
    async with serving(tls=own, verify=context) as plane:
        mine = link(tmp_path / "wrong", plane.url, certificates=wrong)
        async with running(mine):
            await until(
                mine, lambda now: "identity_mismatch" in now.tried.get(plane.url, "")
            )
            codes = {problem.code: problem for problem in mine.problems()}
        mine = link(tmp_path / "right", plane.url, certificates=right)
        async with running(mine):
            await connected(mine)
            await mine.goodbye("stopping", "left_running")
        node = (await plane.admin("GET", "nodes/n1")).json()

    assert "n2" in codes["identity_mismatch"].what
    assert "n1" in codes["identity_mismatch"].what
    assert node["state"] == "left"
