"""A small certificate authority, for tests and for sites that have none.

A folder holds all of it: `ca.crt` and `ca.key`, and `NAME.crt` and `NAME.key` for each
one issued. Nothing that is there is overwritten unless that is asked for.
"""

import io
import ipaddress
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from llmgw import files as whole
from llmgw.config import address
from llmgw.errors import TlsError

CA = "ca"
CA_DAYS = 3650.0
DAYS = 90.0
LARGEST = 1024 * 1024
# A clock that is a little behind must not call a fresh certificate "not yet valid".
BACKDATED = timedelta(minutes=5)


class Issued(Struct, frozen=True):
    """Where a certificate and its key are."""

    cert_file: Path
    key_file: Path
    ca_file: Path


def init(
    folder: Path, *, name: str = "llmgw", days: float = CA_DAYS, force: bool = False
) -> Issued:
    """A new authority in *folder*. TlsError if there is one, unless *force*."""
    files = _files(folder, CA)
    _must_be_free(files, force=force, fix="--force makes all it has issued worthless")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, certificate, key)
    return files


def issue(
    folder: Path,
    name: str,
    *,
    sans: tuple[str, ...] = (),
    days: float = DAYS,
    starts: datetime | None = None,
    force: bool = False,
) -> Issued:
    """A certificate for *name*, good on both ends: nodes dial, control planes listen.

    *sans* are the names and addresses it may be reached under; *name* is one too, where
    a host can be called so.
    """
    if not name or "/" in name or name.startswith((".", "-")) or name == CA:
        raise TlsError(f"{name!r} is no name for a certificate", where=str(folder))
    files = _files(folder, name)
    _must_be_free(files, force=force, fix="--force replaces it")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(folder, name, key.public_key(), sans, days, starts)
    _write(files, certificate, key)
    return files


def sign(
    folder: Path, request: bytes, name: str, *, days: float = DAYS
) -> tuple[bytes, bytes]:
    """A certificate for *name* over the key of a signing request; and the CA's.

    The name is what the caller vouches for: what the request says of itself is not
    looked at. TlsError if it is no request, or not signed with its own key.
    """
    try:
        csr = x509.load_pem_x509_csr(request)
        valid = csr.is_signature_valid
        key = csr.public_key()
    except (ValueError, InvalidSignature) as error:
        raise TlsError("is no signing request in PEM form", where=name) from error
    if not valid or not isinstance(key, ec.EllipticCurvePublicKey):
        raise TlsError("is not signed with an elliptic curve key", where=name)
    certificate = _sign(folder, name, key, (), days, None)
    return _pem(certificate), _files(folder, CA).cert_file.read_bytes()


def bundle(folder: Path, name: str) -> bytes:
    """A tar with what a node needs: tls.crt, tls.key and ca.crt."""
    files = _files(folder, name)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, inside, mode in (
            (files.cert_file, "tls.crt", 0o644),
            (files.key_file, "tls.key", 0o600),
            (files.ca_file, "ca.crt", 0o644),
        ):
            content = _read(path)
            info = tarfile.TarInfo(inside)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def fingerprint(cert_file: Path) -> str:
    """SHA-256 of a certificate, as people compare it."""
    certificate = _load_certificate(cert_file)
    return certificate.fingerprint(hashes.SHA256()).hex(":")


def _sign(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePublicKey,
    sans: tuple[str, ...],
    days: float,
    starts: datetime | None,
) -> x509.Certificate:
    authority = _load_certificate(_files(folder, CA).cert_file)
    authority_key = _load_key(_files(folder, CA).key_file)
    own = (name,) if address.is_name(name) else ()
    names = [_san(text) for text in dict.fromkeys((*own, *sans))]
    builder = _builder(_name(name), authority.subject, key, days, starts)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
    return (
        builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
            ),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                authority_key.public_key()
            ),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: float,
    starts: datetime | None = None,
) -> x509.CertificateBuilder:
    begin = starts or datetime.now(UTC) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(_end(begin + BACKDATED, days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _end(begin: datetime, days: float) -> datetime:
    # Certificates know whole seconds; what lasts none is over as it is made.
    if not days * 86400 >= 1:
        raise TlsError(f"{days:g} days is no time that a certificate lasts")
    try:
        return begin + timedelta(days=days)
    except OverflowError as error:
        raise TlsError(
            f"{days:g} days is too long: a date in a certificate ends with the year "
            "9999"
        ) from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    except ValueError as error:
        raise TlsError(f"{text!r} cannot be a certificate's name: {error}") from error


def _san(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not address.is_name(text.removeprefix("*.")):
        raise TlsError(
            f"{text!r} is neither a name nor an address",
            fix="write one name or address with each --san, without a port",
        )
    return x509.DNSName(text)


def _files(folder: Path, name: str) -> Issued:
    return Issued(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{CA}.crt")


def _must_be_free(files: Issued, *, force: bool, fix: str) -> None:
    for path in (files.cert_file, files.key_file):
        if path.exists() and not force:
            raise TlsError(
                "is there already and stays as it is", where=str(path), fix=fix
            )


def _write(
    files: Issued, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        files.key_file.parent.mkdir(parents=True, exist_ok=True)
        whole.replace(files.key_file, pem, mode=0o600)
        whole.replace(files.cert_file, _pem(certificate), mode=0o644)
    except OSError as error:
        raise TlsError(
            f"cannot be written: {error.strerror}", where=str(error.filename)
        ) from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise TlsError("holds no certificate in PEM form", where=str(path)) from error


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise TlsError("holds no plain key in PEM form", where=str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TlsError("is not an elliptic curve key", where=str(path))
    return key


def _read(path: Path) -> bytes:
    try:
        return whole.read(path, LARGEST)
    except FileNotFoundError as error:
        raise TlsError(
            "is not there",
            where=str(path),
            fix="`llmgw pki init` makes an authority, "
            "`llmgw pki issue NODE` a certificate",
        ) from error
    except OSError as error:
        raise TlsError(f"cannot be read: {error.strerror}", where=str(path)) from error
