"""The control plane's certificate, replaced while it serves."""

import shutil
import ssl
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from llmgw import pki
from llmgw.config.keys import Tls
from llmgw.control.certified import Served
from llmgw.errors import TlsError
from llmgw.tls import Certificates, read_server
from tests.control.conftest import Serving
from tests.fakes.certified import authority, certificates, control_plane

NAMES = ("cert_file", "key_file", "ca_file")


def copied(source: Tls, target: Tls, *names: str) -> None:
    for name in names or NAMES:
        shutil.copy(getattr(source, name), getattr(target, name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return authority(tmp_path / "pki")


@pytest.fixture
def own(folder: Path) -> Tls:
    return control_plane(folder)


@pytest.fixture
def mine(folder: Path) -> ssl.SSLContext:
    return certificates(folder, "n1").context()


@pytest.fixture
def other(tmp_path: Path) -> tuple[Tls, ssl.SSLContext]:
    """Another authority's certificates, for both ends."""
    folder = authority(tmp_path / "other")
    return control_plane(folder), certificates(folder, "n1").context()


def serial(served: Served, mine: ssl.SSLContext) -> int:
    """Of the certificate that is shown in a handshake that names nobody."""
    from cryptography import x509

    context = served.context()
    assert context
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    mine.check_hostname = False
    client = mine.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = client.getpeercert(binary_form=True)
    assert shown
    return x509.load_der_x509_certificate(shown).serial_number


async def can(url: str, context: ssl.SSLContext) -> bool:
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        try:
            return (await client.get(f"{url}/v1/leader")).status_code == 200
        except (httpx.TransportError, ssl.SSLError):
            return False


async def test_a_new_authority_is_served_and_the_old_one_refused_without_a_restart(
    serving: Serving,
    own: Tls,
    mine: ssl.SSLContext,
    other: tuple[Tls, ssl.SSLContext],
) -> None:
    """T38 at the other end; a session that is open carries on meanwhile."""
    fresh, theirs = other
    async with serving(tls=own, verify=mine) as plane:
        session = (await plane.register()).session
        before = await can(plane.url, mine), await can(plane.url, theirs)

        await anyio.to_thread.run_sync(copied, fresh, own)
        with anyio.fail_after(10):
            while not await can(plane.url, theirs):
                await anyio.sleep(0.05)

        assert before == (True, False)
        assert not await can(plane.url, mine)
        assert (await plane.beat(session)).status_code == 200


def test_a_half_written_pair_changes_nothing(
    folder: Path, own: Tls, mine: ssl.SSLContext
) -> None:
    """T38: file by file, and the handshake in between shows the old one."""
    served = Served(own)
    first = serial(served, mine)
    made = pki.issue(folder, "next", sans=("127.0.0.1",))
    fresh = Tls(
        cert_file=str(made.cert_file),
        key_file=str(made.key_file),
        ca_file=str(made.ca_file),
    )

    copied(fresh, own, "cert_file")
    between = serial(served, mine)
    copied(fresh, own, "key_file")
    last = serial(served, mine)

    assert first == between != last


def test_files_that_never_fitted_are_told_at_the_start(
    own: Tls, other: tuple[Tls, ssl.SSLContext]
) -> None:
    copied(other[0], own, "ca_file")

    with pytest.raises(TlsError, match="is not a certificate in"):
        Served(own).context()


def test_its_name_need_not_be_a_nodes(own: Tls) -> None:
    """The host in its address is what agents look for, and not its common name."""
    certificates = Certificates(own, None, load=read_server)
    certificates.context()

    assert certificates.problems() == ()


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ("another CA's", "its certificate is not signed by a CA"),
        ("nobody", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("plain", "does not speak TLS"),
    ],
)
async def test_a_handshake_that_fails_is_in_the_log_and_not_each_time(
    serving: Serving,
    own: Tls,
    mine: ssl.SSLContext,
    other: tuple[Tls, ssl.SSLContext],
    who: str,
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An agent that is refused points its reader here."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    theirs = other[1]
    if who == "another CA's":
        theirs.check_hostname = False
        theirs.verify_mode = ssl.CERT_NONE
    async with serving(tls=own, verify=mine) as plane:
        url = plane.url
        if who == "plain":
            url = url.replace("https", "http")
        for _ in range(3):
            assert not await can(url, trusting if who == "nobody" else theirs)
        with anyio.fail_after(10):
            while "handshake failed" not in caplog.text:
                await anyio.sleep(0.01)
        assert (await plane.client.get("/v1/leader")).status_code == 200

    assert caplog.text.count("handshake failed") == 1
    assert says in caplog.text
    assert "Traceback" not in caplog.text


def test_without_tls_there_is_no_context() -> None:
    assert Served(Tls()).context() is None
