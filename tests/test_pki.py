"""The small authority: what it makes, what it refuses, and that it works in OpenSSL."""

import io
import os
import ssl
import stat
import tarfile
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from llmgw import pki
from llmgw.cli import parse
from llmgw.errors import TlsError


def handshake(server: pki.Issued, client: pki.Issued, name: str) -> str:
    """Both ends in memory, each asking the other for a certificate; the client's name
    as the server saw it.
    """
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.verify_mode = ssl.CERT_REQUIRED
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, files in ((inside, server), (outside, client)):
        context.load_cert_chain(files.cert_file, files.key_file)
        context.load_verify_locations(files.ca_file)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = inside.wrap_bio(up, down, server_side=True)
    two = outside.wrap_bio(down, up, server_hostname=name)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in (two, one):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    assert done == {one, two}
    certificate = one.getpeercert(binary_form=True)
    assert certificate
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()


def test_what_it_issues_makes_a_mutual_handshake(tmp_path: Path) -> None:
    pki.init(tmp_path)
    server = pki.issue(tmp_path, "cp1", sans=("cp1.example", "fd00::1"))
    client = pki.issue(tmp_path, "Node_17")

    assert handshake(server, client, "cp1.example") == "CN=Node_17"
    assert handshake(server, client, "fd00::1") == "CN=Node_17"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "cp2.example")


def test_another_authority_of_the_same_name_is_another(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        pki.init(tmp_path / folder)
    server = pki.issue(tmp_path / "a", "cp1")
    client = pki.issue(tmp_path / "b", "n1")

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "cp1")


def test_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    for made in (pki.init(tmp_path), pki.issue(tmp_path, "n1")):
        assert stat.S_IMODE(made.key_file.stat().st_mode) == 0o600


def test_nothing_is_overwritten_without_being_told(tmp_path: Path) -> None:
    first = pki.init(tmp_path)
    node = pki.issue(tmp_path, "n1")
    before = first.key_file.read_bytes(), node.cert_file.read_bytes()

    with pytest.raises(TlsError, match="is there already"):
        pki.init(tmp_path)
    with pytest.raises(TlsError, match="is there already"):
        pki.issue(tmp_path, "n1")
    assert (first.key_file.read_bytes(), node.cert_file.read_bytes()) == before

    pki.issue(tmp_path, "n1", force=True)
    assert node.cert_file.read_bytes() != before[1]


@pytest.mark.parametrize("name", ["", "ca", "../n1", "a/b", ".hidden", "-n", "x" * 65])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    pki.init(tmp_path)

    with pytest.raises(TlsError):
        pki.issue(tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key"]


@pytest.mark.parametrize(
    "days", [-5.0, 0.0, 1e-9, 9_999_999.0, float("inf"), float("nan")]
)
def test_a_time_that_no_certificate_lasts_is_refused(
    tmp_path: Path, days: float
) -> None:
    """-5 and 9999999 were tracebacks; 0 made one that was over already."""
    pki.init(tmp_path)

    for make in (pki.issue, pki.init):
        with pytest.raises(TlsError, match="days is"):
            make(tmp_path, name="n1", days=days, force=True)
    assert not (tmp_path / "n1.crt").exists()


@pytest.mark.parametrize(
    "san", ["bad san", "", "a..b", "https://cp1", "cp1:7443", "*", "käse.example"]
)
def test_what_no_host_is_called_is_no_name_for_one(tmp_path: Path, san: str) -> None:
    pki.init(tmp_path)

    with pytest.raises(TlsError, match="neither a name nor an address"):
        pki.issue(tmp_path, "n1", sans=(san,))
    assert not (tmp_path / "n1.crt").exists()


@pytest.mark.parametrize(
    ("name", "sans", "names"),
    [
        ("cp1", ("*.cp1.example", "10.0.0.1"), ["cp1", "*.cp1.example"]),
        # A node_id may be anything; nobody dials it under that.
        ("rack 7:n1", ("n1.example",), ["n1.example"]),
        ("rack 7:n1", (), []),
    ],
)
def test_the_names_in_it_are_those_of_hosts(
    tmp_path: Path, name: str, sans: tuple[str, ...], names: list[str]
) -> None:
    pki.init(tmp_path)
    made = pki.issue(tmp_path, name, sans=sans)

    certificate = x509.load_pem_x509_certificate(made.cert_file.read_bytes())
    found = [
        one
        for extension in certificate.extensions
        if isinstance(extension.value, x509.SubjectAlternativeName)
        for one in extension.value.get_values_for_type(x509.DNSName)
    ]
    assert found == names
    assert certificate.subject.rfc4514_string().startswith("CN=")


def test_without_an_authority_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(TlsError) as caught:
        pki.issue(tmp_path, "n1")

    assert "pki init" in caught.value.fix


def test_an_authority_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    made = pki.init(tmp_path)
    made.key_file.unlink()
    os.mkfifo(made.key_file)

    with pytest.raises(TlsError, match="is not a regular file"):
        pki.issue(tmp_path, "n1")


def test_a_bundle_is_all_that_a_node_needs(tmp_path: Path) -> None:
    pki.init(tmp_path)
    made = pki.issue(tmp_path, "n1")

    with tarfile.open(fileobj=io.BytesIO(pki.bundle(tmp_path, "n1"))) as tar:
        found = {member.name: member.mode for member in tar}
        key = tar.extractfile("tls.key")
        assert key is not None
        assert key.read() == made.key_file.read_bytes()

    assert found == {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644}


def asked(
    name: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
) -> x509.CertificateSigningRequest:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256())


def test_a_request_is_signed_under_the_name_that_was_vouched_for(
    tmp_path: Path,
) -> None:
    pki.init(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    request = asked("root", key).public_bytes(serialization.Encoding.PEM)

    certificate, authority = pki.sign(tmp_path, request, "n1", days=1)

    made = x509.load_pem_x509_certificate(certificate)
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert made.subject.rfc4514_string() == "CN=n1"
    assert made.public_key() == key.public_key()
    with pytest.raises(TlsError):
        pki.sign(tmp_path, b"no request", "n1")


@pytest.mark.parametrize("kind", ["not its own key", "rsa"])
def test_a_request_has_to_be_signed_with_its_own_elliptic_key(
    tmp_path: Path, kind: str
) -> None:
    """Or whoever saw somebody's public key could have it certified as his."""
    pki.init(tmp_path)
    if kind == "rsa":
        request = asked("n1", rsa.generate_private_key(65537, 2048))
    else:
        right = asked("n1", ec.generate_private_key(ec.SECP256R1()))
        signed = right.public_bytes(serialization.Encoding.DER)
        other = signed.replace(b"n1", b"n2")
        request = x509.load_der_x509_csr(other)

    with pytest.raises(TlsError, match="elliptic curve key"):
        pki.sign(tmp_path, request.public_bytes(serialization.Encoding.PEM), "n1")


def test_the_command_does_all_three(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for words in (["init"], ["issue", "n1", "--san", "10.0.0.1"], ["bundle", "n1"]):
        arguments = parse(["pki", "--dir", str(tmp_path), *words])
        assert arguments.run(arguments) == 0

    printed = capfdbinary.readouterr().out
    assert printed[printed.index(b"tls.crt\0") :] == pki.bundle(tmp_path, "n1")
