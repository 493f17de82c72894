"""Mutual TLS: the own certificate, the one CA that is trusted, and what went wrong.

Certificates are read when a connection is made and a file has changed since: a rotated
one is used from the next connection on, and a half-written pair changes nothing.
"""

import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from msgspec import Struct

from llmgw import files
from llmgw.config.keys import Tls
from llmgw.dates import shown
from llmgw.errors import TlsError
from llmgw.wire import Problem

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger(__name__)

DAY = 86400.0
LARGEST = 1024 * 1024  # four times a distribution's whole bundle
_NO_KEY = "holds no private key in PEM form"
# Days before the end: told in the log as each is passed; from the first on a problem.
WARN_DAYS = (30, 7, 1)
# Of one that is made for less than this, the same shares of its life: a certificate for
# 30 days warned of its end from its first minute on, and one for a day was an error.
WARNED_IN_FULL_DAYS = 90


class Certificate(Struct, frozen=True):
    """What this node says of itself; times in seconds since 1970."""

    common_name: str
    not_before: float
    not_after: float
    issuer: str


class Pair(Struct, frozen=True):
    """Files that fit together, loaded."""

    context: ssl.SSLContext
    certificate: Certificate


class Certificates:
    """The newest files that fit together.

    *load* makes one end of a connection of them: `read` a node's, `read_server` a
    control plane's. *node_id*: the name they have to have; None, any.
    """

    def __init__(
        self,
        settings: Tls,
        node_id: str | None,
        *,
        load: "Callable[[Path, Path, Path], Pair] | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert settings.cert_file, "all three or none"
        assert settings.key_file, "all three or none"
        assert settings.ca_file, "all three or none"
        self.server_name = settings.server_name
        self._node_id = node_id
        self._files = (
            Path(settings.cert_file),
            Path(settings.key_file),
            Path(settings.ca_file),
        )
        self._load = load or read
        self._clock = clock
        self._pair: Pair | None = None
        self._seen: object = None
        self._fault: TlsError | None = None
        self._warned: float | None = None
        self._reading = threading.Lock()

    async def fresh(self) -> ssl.SSLContext:
        """For the next connection. TlsError if there was never a pair that fits."""
        return await anyio.to_thread.run_sync(self.context)

    def context(self) -> ssl.SSLContext:
        """As `fresh`, which does not hold up the event loop."""
        self.refresh()
        return self.newest

    @property
    def newest(self) -> ssl.SSLContext:
        """As at the last look; nothing is read. TlsError if there never was any."""
        if self._pair is None:
            assert self._fault is not None
            raise self._fault
        return self._pair.context

    def refresh(self) -> None:
        """Look whether the files changed, and read them if so."""
        # Two servers are dialled at once, each from its own thread.
        with self._reading:
            self._refresh()

    def _refresh(self) -> None:
        seen = tuple(_mark(path) for path in self._files)
        if seen != self._seen:
            self._seen = seen
            self._read()
        self._warn_of_the_end()

    def _read(self) -> None:
        try:
            pair = self._load(*self._files)
        except TlsError as error:
            # Once for each change of the files, not once a connection.
            level = logging.ERROR if self._pair is None else logging.WARNING
            stay = "none" if self._pair is None else "the old ones"
            log.log(level, "certificates unusable in_use=%s %s", stay, error)
            self._fault = error
            return
        if self._pair is not None:
            log.info("certificates replaced name=%s", pair.certificate.common_name)
        self._pair, self._fault, self._warned = pair, None, None

    @property
    def certificate(self) -> Certificate | None:
        return self._pair.certificate if self._pair else None

    @property
    def expires_s(self) -> float | None:
        """Seconds until the certificate ends, by this machine's clock."""
        if self._pair is None:
            return None
        return self._pair.certificate.not_after - self._clock()

    def problems(self) -> tuple[Problem, ...]:
        """What somebody should know of before, or because, nothing connects."""
        found: list[Problem] = []
        where = str(self._files[0])
        if self._fault is not None:
            stays = " (the ones read before are still in use)" if self._pair else ""
            found.append(
                Problem(
                    code="tls_files",
                    severity="warning" if self._pair else "error",
                    what=self._fault.what + stays,
                    where=self._fault.where,
                    fix=self._fault.fix or None,
                )
            )
        if self._pair is not None:
            found += condition(
                self._pair.certificate, self._node_id, self._clock(), where=where
            )
        return tuple(found)

    def _warn_of_the_end(self) -> None:
        left = self.expires_s
        if self._pair is None or left is None:
            return
        ends = warnings(self._pair.certificate)
        passed = [end for end in ends if left <= end]
        if passed and passed[-1] != self._warned:
            self._warned = passed[-1]
            log.warning(
                "certificate ends soon file=%s in=%s",
                self._files[0],
                span(max(left, 0.0)),
            )


def warnings(certificate: Certificate) -> tuple[float, ...]:
    """At how many seconds before its end it is warned of, the first time first."""
    life = certificate.not_after - certificate.not_before
    share = min(1.0, life / (WARNED_IN_FULL_DAYS * DAY))
    return tuple(days * DAY * share for days in WARN_DAYS)


def condition(
    certificate: Certificate, node_id: str | None, now: float, *, where: str
) -> list[Problem]:
    """What is wrong, or soon will be, with a certificate that can be read."""
    found: list[Problem] = []
    if node_id not in (None, certificate.common_name):
        found.append(
            Problem(
                code="tls_name",
                severity="error",
                what=f"the certificate is for {certificate.common_name!r} and "
                f"this node is {node_id!r}: a control plane refuses it",
                where=where,
                fix=f"set node_id to {certificate.common_name!r}, "
                f"or issue a certificate for {node_id!r}",
            )
        )
    left = certificate.not_after - now
    if now < certificate.not_before:
        found.append(
            Problem(
                code="tls_not_yet",
                severity="error",
                what=f"the certificate is valid from {shown(certificate.not_before)} "
                f"on and this machine's clock says {shown(now)}",
                where=where,
                fix="set the clock of this machine",
            )
        )
    elif left <= 0:
        found.append(
            Problem(
                code="tls_expired",
                severity="error",
                what=f"the certificate ended on {shown(certificate.not_after)}, by "
                f"this machine's clock {span(-left)} ago",
                where=where,
                fix="issue a new one; it is used as soon as the files are there",
            )
        )
    elif left <= warnings(certificate)[0]:
        found.append(
            Problem(
                code="tls_expires",
                severity="error" if left <= warnings(certificate)[-1] else "warning",
                what=f"the certificate ends in {span(left)}, "
                f"on {shown(certificate.not_after)}",
                where=where,
                fix="issue a new one; it is used as soon as the files are there",
            )
        )
    return found


def read(cert_file: Path, key_file: Path, ca_file: Path) -> Pair:
    """TlsError unless all three can be read and fit together."""
    return _filled(
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert_file, key_file, ca_file
    )


def read_server(cert_file: Path, key_file: Path, ca_file: Path) -> Pair:
    """As `read`, for the end that is dialled; it asks the other for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _filled(context, cert_file, key_file, ca_file)


def _filled(
    context: ssl.SSLContext, cert_file: Path, key_file: Path, ca_file: Path
) -> Pair:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate = inspect(cert_file, ca_file)
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(
            f"cannot be read: {_words(error)}", where=str(ca_file)
        ) from error
    try:
        # OpenSSL opens what it is told to, and of a FIFO waits for a writer.
        files.read(key_file, LARGEST)
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"is not the key of {cert_file}", where=str(key_file)
            ) from error
        # OpenSSL has no reason for what is no PEM at all, and Python names its source.
        what = f"cannot be read: {error.reason}" if error.reason else _NO_KEY
        raise TlsError(what, where=str(key_file)) from error
    except (OSError, ValueError) as error:
        raise TlsError(
            f"cannot be read: {_words(error)}", where=str(key_file)
        ) from error
    return Pair(context, certificate)


def _no_password() -> str:
    # Without this OpenSSL asks at the terminal, and an agent waits there for ever.
    raise ValueError("it is encrypted, and nobody is there to type the password")


def inspect(cert_file: Path, ca_file: Path) -> Certificate:
    """This node's own certificate, which must be signed by the CA it trusts."""
    # Large (its import alone costs 50 ms), and needed only where TLS is on.
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    chain = _certificates(cert_file)
    trusted = _certificates(ca_file)
    own = chain[0]
    for issuer in (*chain[1:], *trusted):
        try:
            own.verify_directly_issued_by(issuer)
            break
        except (ValueError, TypeError, InvalidSignature):
            continue
    else:
        raise TlsError(
            f"is signed by {own.issuer.rfc4514_string()}, "
            f"which is not a certificate in {ca_file}",
            where=str(cert_file),
            fix="is it this node's certificate, and that the file of its CA?",
        )
    names = own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return Certificate(
        common_name=str(names[0].value) if names else "",
        not_before=own.not_valid_before_utc.timestamp(),
        not_after=own.not_valid_after_utc.timestamp(),
        issuer=own.issuer.rfc4514_string(),
    )


def _certificates(path: Path) -> list["x509.Certificate"]:
    from cryptography import x509  # as in inspect()

    try:
        return x509.load_pem_x509_certificates(files.read(path, LARGEST))
    except OSError as error:
        raise TlsError(f"cannot be read: {_words(error)}", where=str(path)) from error
    except ValueError as error:
        raise TlsError("holds no certificate in PEM form", where=str(path)) from error


def _mark(path: Path) -> object:
    """Differs once the file is another: written in place, renamed over, or gone. Also
    once others may read it: a key that only root could read is mended by a chown.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    content = found.st_mtime_ns, found.st_ino, found.st_size
    # Within one tick the times are the same; an access list changes the last alone.
    return *content, found.st_mode, found.st_uid, found.st_gid, found.st_ctime_ns


def _words(error: Exception) -> str:
    return (
        getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    )


def span(seconds: float) -> str:
    """In the largest unit that has two of it."""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.0f} days"
    if seconds >= 7200:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes"
