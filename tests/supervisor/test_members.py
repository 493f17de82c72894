"""Finding all that an engine started, each by the one thing that gives it away."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.supervisor import procfs, reaper
from llmgw.supervisor.ledger import REPLICA, TAG, Identity, replica
from llmgw.supervisor.members import related, send
from tests.soak.machine import faketime

# Of this run alone: another beside it searches the same /proc.
LEDGER = secrets.token_hex(8)
MARK = {TAG: LEDGER, REPLICA: "x"}
# Prints its own number and that of what it started, and waits.
PARENT = """
import os, signal, sys
how, env = sys.argv[1], dict(os.environ)
if os.fork() == 0:
    if how != "plain":
        os.setsid()
    if how == "untagged" or how == "orphan":
        env = {}
    if how == "orphan" and os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    os.execve("/bin/sleep", ["worker", "60"], env)
signal.pause()
"""


class Family:
    """An engine of ours and one worker of it."""

    def __init__(self, how: str) -> None:
        self.engine = subprocess.Popen(
            [sys.executable, "-S", "-c", PARENT, how],
            env=MARK,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.engine.stdout
        self.worker = int(self.engine.stdout.readline())
        while procfs.argv(self.worker) != ("worker", "60"):
            os.sched_yield()  # until its exec is through it has its parent's marks
        identity = Identity.of(self.engine.pid)
        assert identity
        self.identity = identity

    def found(
        self, *, descended: bool, known: dict[int, int] | None = None
    ) -> set[int]:
        stats = related("x", LEDGER, self.identity, known or {}, descended=descended)
        return {stat.pid for stat in stats}


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    reaper.become_subreaper()
    made = Family(request.param)
    yield made
    assert made.engine.stdout
    made.engine.stdout.close()
    for pid in (made.engine.pid, made.worker):
        if procfs.stat(pid):
            os.kill(pid, signal.SIGKILL)
    made.engine.wait()


@pytest.mark.parametrize("descended", [False, True])
@pytest.mark.parametrize("family", ["plain", "tagged", "untagged"], indirect=True)
def test_an_engine_and_its_worker_are_found_while_it_lives(
    family: Family, descended: bool
) -> None:
    """T54: a session of its own and an environment of its own hide nothing."""
    assert family.found(descended=descended) == {family.engine.pid, family.worker}


@pytest.mark.parametrize("descended", [False, True])
@pytest.mark.parametrize("family", ["plain", "tagged"], indirect=True)
def test_a_worker_is_found_after_its_engine_died(
    family: Family, descended: bool
) -> None:
    """T52, T53: by its session, or, where it has left that, by its tag alone."""
    family.engine.kill()
    os.waitid(os.P_PID, family.engine.pid, os.WEXITED | os.WNOWAIT)

    assert family.found(descended=descended) == {family.worker}


@pytest.mark.parametrize("descended", [False, True])
@pytest.mark.parametrize("family", ["orphan"], indirect=True)
def test_one_without_tag_session_and_parent_is_found_if_it_was_seen_before(
    family: Family, descended: bool
) -> None:
    stat = procfs.stat(family.worker)
    assert stat

    assert family.worker not in family.found(descended=descended)
    assert family.worker in family.found(
        descended=descended, known={stat.pid: stat.started}
    )
    assert family.worker not in family.found(
        descended=descended, known={stat.pid: stat.started + 1}
    )


def test_another_replicas_processes_are_not_taken_for_this_ones() -> None:
    """Started later, below the same agent."""
    ours = Family("tagged")
    with subprocess.Popen(
        ["/bin/sleep", "60"], env={**MARK, REPLICA: "y"}, start_new_session=True
    ) as theirs:
        try:
            for descended in (False, True):
                assert theirs.pid not in ours.found(descended=descended)
            assert replica(LEDGER, theirs.pid) == "y"
            assert replica("another ledger", theirs.pid) is None
        finally:
            theirs.kill()
            os.kill(ours.worker, signal.SIGKILL)
            ours.engine.kill()
            ours.engine.wait()
            assert ours.engine.stdout
            ours.engine.stdout.close()


@pytest.mark.parametrize("descended", [False, True])
def test_another_replicas_process_below_it_is_not_its_own(*, descended: bool) -> None:
    """T54: neither it nor what it started, though an engine's tag is inherited."""
    program = (
        "import os, subprocess, sys\n"
        "env = {**os.environ, sys.argv[1]: 'y'}\n"
        "line = 'sleep 60 & echo $!; exec sleep 60'\n"
        "child = subprocess.Popen(['sh', '-c', line], env=env)\n"
        "child.wait()\n"
    )
    reaper.become_subreaper()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, REPLICA],
        env={**os.environ, **MARK},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as engine:
        assert engine.stdout
        below = int(engine.stdout.readline())
        try:
            identity = Identity.of(engine.pid)
            assert identity
            found = related("x", LEDGER, identity, {}, descended=descended)
        finally:
            os.killpg(engine.pid, signal.SIGKILL)

    assert [stat.pid for stat in found] == [engine.pid]
    assert below != engine.pid


def test_a_process_that_turns_into_another_program_keeps_its_mark() -> None:
    """T54: between the two it shows no environment, for a moment in every fifty."""
    line = 'exec sh -c "$LINE"'
    # The more there is, the longer it looks as if there were none at all.
    much = {f"MUCH_{number}": "x" * 50 for number in range(400)}
    env = {**much, **MARK, "LINE": line}
    with subprocess.Popen(["/bin/sh", "-c", line], env=env) as one:
        try:
            seen = {replica(LEDGER, one.pid) for _ in range(8_000)}
        finally:
            one.kill()

    assert seen == {"x"}


@pytest.mark.skipif(not faketime(), reason="needs libfaketime: apt install faketime")
def test_it_is_waited_for_also_where_the_clock_is_turned() -> None:
    """T54: time.sleep is until an instant, and the library calls that an error."""
    line = 'exec sh -c "$LINE"'
    look = (
        "import sys; from llmgw.supervisor import procfs;"
        "[procfs.environ(int(sys.argv[1])) for _ in range(3000)]"
    )
    turned = {
        **os.environ,
        "LD_PRELOAD": faketime(),
        "FAKETIME": "-3000d",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with subprocess.Popen(["/bin/sh", "-c", line], env={**MARK, "LINE": line}) as one:
        try:
            done = subprocess.run(
                [sys.executable, "-c", look, str(one.pid)],
                env=turned,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        finally:
            one.kill()

    assert (done.returncode, done.stderr) == (0, "")


def test_one_without_environment_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has none for good, and so have the dead and the kernel's threads."""
    waits: list[float] = []
    monkeypatch.setattr(procfs.pause, "wait", waits.append)
    # The kernel's own are not seen in every namespace.
    comm = procfs.PROC / "2/comm"
    if comm.exists() and comm.read_text() == "kthreadd\n":
        assert not any(procfs.environ(2))
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as bare:
        while procfs.argv(bare.pid) != ("/bin/sleep", "60"):
            os.sched_yield()
        waits.clear()
        assert not any(procfs.environ(bare.pid))
        bare.kill()
        os.waitid(os.P_PID, bare.pid, os.WEXITED | os.WNOWAIT)
        assert not any(procfs.environ(bare.pid))
    assert not any(procfs.environ(bare.pid))

    assert waits == []


def test_what_a_thread_started_is_a_child_too() -> None:
    program = (
        "import subprocess, threading, sys\n"
        "def work():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
        "threading.Thread(target=work).start()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        found = procfs.children(process.pid)
        os.kill(child, signal.SIGKILL)

    assert found == [child]


def test_a_file_is_open_whatever_else_is_mapped_and_closed(tmp_path: Path) -> None:
    """Names need not be UTF-8, and a process opens and closes as it likes."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "model").write_bytes(b"x" * 4096)
    strange = os.fsencode(inside) + b"/caf\xe9.so"
    with open(strange, "wb") as file:  # noqa: PTH123 -- a name of bytes
        file.write(b"x" * 4096)
    program = (
        "import mmap, os, sys\n"
        "mapped = open(os.fsencode(sys.argv[1]), 'rb')\n"
        "kept = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)\n"
        "low = os.open('/dev/null', 0)\n"
        "high = open(sys.argv[2], 'rb')\n"
        "mapped.close()\n"
        "print(flush=True)\n"
        "while True:\n"
        "    os.close(low)\n"
        "    low = os.open('/dev/null', 0)\n"
    )
    command = [sys.executable, "-S", "-c", program, strange, str(inside / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            found = [procfs.open_below(inside) for _ in range(100)]
        finally:
            process.kill()

    everything = {os.fsdecode(strange), str(inside / "model")}
    assert [one for one in found if one != everything] == []


def test_a_process_that_is_gone_has_no_list_of_children(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()

    assert procfs.children(process.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's place: run as root")
def test_what_may_not_be_signalled_keeps_no_signal_from_the_others() -> None:
    """A worker that is setuid, as fusermount3, ended the agent at each start."""
    with subprocess.Popen(["sleep", "60"]) as roots:
        with subprocess.Popen(["sleep", "60"], user=4242) as own:
            stats = [procfs.stat(roots.pid), procfs.stat(own.pid)]
            os.setresuid(4242, 4242, 0)
            try:
                send([stat for stat in stats if stat], signal.SIGTERM)
            finally:
                os.setresuid(0, 0, 0)

            assert own.wait(5) == -signal.SIGTERM
        assert roots.poll() is None
        roots.kill()
