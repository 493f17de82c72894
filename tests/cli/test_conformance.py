"""`llmgw conformance` as a program, against control planes that are programs too."""

import re
import socket
import subprocess
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from llmgw.config.keys import Tls
from tests.e2e.fleet import Program, llmgw, until
from tests.fakes.certified import authority, settings
from tests.fakes.certified import control_plane as certified

# The number of lines: a rule that is not played any more is to be noticed.
RULES = 22


class Ended(Struct):
    code: int
    said: str

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return re.findall(r"^(pass|fail|skip)\s+(\S+)", self.said, re.MULTILINE)

    @property
    def failed(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("fail")]


def started(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        llmgw("conformance", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str], patience: float = 60) -> Ended:
    try:
        said, _ = process.communicate(timeout=patience)
    finally:
        process.kill()
    return Ended(process.returncode, said)


@contextmanager
def control(folder: Path, *words: str | Path) -> Generator[str]:
    """The address it serves on."""
    folder.mkdir()
    arguments = ["control", "--listen", "127.0.0.1:0", "--heartbeat-s", "1"]
    arguments += ["--state-dir", str(folder / "state"), *map(str, words)]
    program = Program(folder / "log", arguments)
    try:
        found = until(lambda: re.search(r"serves url=(\S+)", program.said), "it serves")
        yield found[1]
        # Nothing that was played is a fault of the program itself.
        assert "Traceback" not in program.said
    finally:
        program.kill()


@contextmanager
def lying(url: str, said: bytes, instead: bytes) -> Generator[str]:
    """The address of one that answers as *url* does, but for these bytes."""
    assert len(said) == len(instead)
    ahead = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.listen(100)
        threading.Thread(target=_serve, args=(port, ahead, said, instead)).start()
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}"
        finally:
            port.shutdown(socket.SHUT_RDWR)


def _serve(
    port: socket.socket, ahead: tuple[str, int], said: bytes, instead: bytes
) -> None:
    pumps: list[threading.Thread] = []
    with ExitStack() as stack:
        while True:
            try:
                near = stack.enter_context(port.accept()[0])
            except OSError:  # the test is over
                break
            far = stack.enter_context(socket.create_connection(ahead))
            for source, target, change in (
                (near, far, (b"", b"")),
                (far, near, (said, instead)),
            ):
                pumps.append(
                    threading.Thread(target=_pump, args=(source, target, *change))
                )
                pumps[-1].start()
        for pump in pumps:
            pump.join()


def _pump(
    source: socket.socket, target: socket.socket, said: bytes, instead: bytes
) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece.replace(said, instead) if said else piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end has gone


def paired(names: Sequence[str], tls: Tls) -> list[str]:
    files = (tls.cert_file, tls.key_file, tls.ca_file)
    return [str(word) for pair in zip(names, files, strict=True) for word in pair]


TLS = ("--tls-cert", "--tls-key", "--tls-ca")


def test_the_reference_holds_and_one_that_breaks_a_rule_is_named(
    tmp_path: Path,
) -> None:
    """All three at once: each waits for a lease to end, and does little else."""
    own = paired(TLS, certified(authority(tmp_path / "pki")))
    mine = paired(TLS, settings(tmp_path / "pki", "n1"))
    with (
        control(tmp_path / "plain") as url,
        control(tmp_path / "mutual", *own) as over_tls,
        control(tmp_path / "honest") as honest,
        lying(honest, b'"lease_s":3.0', b'"lease_s":2.9') as liar,
    ):
        running = [started(url), started(over_tls, "--step-down", *mine), started(liar)]
        plain, mutual, lied = map(ended, running)

    assert plain.code == 0, plain.said
    assert len(plain.outcomes) == RULES
    skipped = [rule for what, rule in plain.outcomes if what == "skip"]
    # The proof of a name needs TLS, and stepping down the word of a person.
    assert skipped == ["refusals", "3.4"]
    assert plain.failed == []
    assert f"{RULES} of {RULES} hold or were skipped" in plain.said

    assert mutual.code == 0, mutual.said
    assert [what for what, _ in mutual.outcomes] == ["pass"] * RULES

    assert lied.code == 1
    (line,) = lied.failed
    assert line.split()[:2] == ["fail", "register"]
    assert "lease_s 2.9 < 3 * 1" in line
    assert f"{RULES - 1} of {RULES} hold" in lied.said


# What is no control plane ------------------------------------------------------------


@contextmanager
def answering(raw: bytes) -> Generator[str]:
    """The address of a web server that says this to everybody, and hangs up."""

    def serve(port: socket.socket) -> None:
        while True:
            try:
                one, _ = port.accept()
            except OSError:
                return
            with one:
                one.recv(65536)
                one.sendall(raw)

    with socket.create_server(("127.0.0.1", 0)) as port:
        threading.Thread(target=serve, args=(port,)).start()
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}"
        finally:
            port.shutdown(socket.SHUT_RDWR)


def response(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("raw", "failed"),
    [
        (response("200 OK", b"<html>It works!</html>"), 18),
        (response("200 OK", b"[" * 100_000), 18),
        (response("500 Oops", b""), 18),
    ],
    ids=["a page", "a deep one", "a broken one"],
)
def test_another_web_server_fails_and_nothing_else_happens(
    raw: bytes, failed: int
) -> None:
    with answering(raw) as url:
        done = ended(started(url))

    assert done.code == 1
    assert len(done.outcomes) == RULES
    assert len(done.failed) >= failed, done.said
    assert "Traceback" not in done.said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("http://127.0.0.1:1",), 1, "no answer: Connection refused"),
        (("http://127.0.0.1:99999",), 78, "has the port 99999; ports are 1 to 65535"),
        (("ftp://127.0.0.1",), 78, "must be an http:// or https:// address"),
        (("http://",), 78, "has no host"),
        (("127.0.0.1:1", "--tls-cert", "a"), 78, "give --tls-key and --tls-ca as well"),
    ],
    ids=["nobody", "port", "scheme", "host", "files"],
)
def test_what_cannot_be_asked_is_said(
    words: Sequence[str], code: int, says: str
) -> None:
    done = ended(started(*words))

    assert (done.code, "Traceback" in done.said) == (code, False), done.said
    assert says in done.said


def test_a_refusal_without_words_is_a_standbys_all_the_same() -> None:
    with answering(response("421 Misdirected Request", b"<html>")) as url:
        done = ended(started(url))

    assert done.code == 1
    assert f"{url}: is a standby" in done.said
    assert "ask the leader" in done.said


def test_tls_that_does_not_fit_is_told_as_an_agent_tells_it(tmp_path: Path) -> None:
    own = paired(TLS, certified(authority(tmp_path / "pki")))
    theirs = paired(TLS, settings(authority(tmp_path / "other"), "n1"))
    with control(tmp_path / "cp", *own) as url:
        stranger = ended(started(url, *theirs))
        plain = ended(started(url.replace("https://", "http://")))

        ignored = ended(started(url.replace("https://", "http://"), *own))

    assert stranger.code == plain.code == 1
    assert ignored.code == 78
    assert "is an http:// address, and certificates are given" in ignored.said
    assert "is not signed by a CA in --tls-ca" in stranger.said
    assert "no answer" in plain.said
