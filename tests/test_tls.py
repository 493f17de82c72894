"""Which certificates are usable, which are used, and what is said of the others."""

import os
import shutil
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest

from llmgw import pki
from llmgw.config.keys import Tls
from llmgw.errors import TlsError
from llmgw.tls import DAY, Certificates, Pair, read
from tests.fakes.certified import authority, settings


def paths(tls: Tls) -> tuple[Path, Path, Path]:
    assert tls.cert_file
    assert tls.key_file
    assert tls.ca_file
    return Path(tls.cert_file), Path(tls.key_file), Path(tls.ca_file)


def codes(certificates: Certificates) -> list[str]:
    return [problem.code for problem in certificates.problems()]


def test_three_files_that_fit_are_one_context(tmp_path: Path) -> None:
    pair = read(*paths(settings(authority(tmp_path))))

    assert pair.certificate.common_name == "n1"
    assert pair.context.verify_mode is ssl.CERT_REQUIRED
    assert pair.context.check_hostname
    assert pair.context.minimum_version is ssl.TLSVersion.TLSv1_2
    # Only the one that is configured: not what this machine trusts besides.
    assert len(pair.context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("number", "content", "says"),
    [
        (0, None, "No such file"),
        (1, None, "No such file"),
        (2, None, "No such file"),
        (0, b"", "no certificate in PEM"),
        (
            0,
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "no cert",
        ),
        (1, b"", "no private key in PEM"),
        (1, b"server = 1", "no private key in PEM"),
        (2, b"nonsense", "no certificate in PEM"),
    ],
)
def test_a_file_that_is_none_is_named(
    tmp_path: Path, number: int, content: bytes | None, says: str
) -> None:
    files = paths(settings(authority(tmp_path)))
    if content is None:
        files[number].unlink()
    else:
        files[number].write_bytes(content)

    with pytest.raises(TlsError, match=says) as caught:
        read(*files)
    assert caught.value.where == str(files[number])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_fifo_is_named_and_not_waited_for(tmp_path: Path, number: int) -> None:
    """OpenSSL would wait for a writer, and with it whoever asked."""
    files = paths(settings(authority(tmp_path)))
    files[number].unlink()
    os.mkfifo(files[number])

    with pytest.raises(TlsError, match="is not a regular file") as caught:
        read(*files)
    assert caught.value.where == str(files[number])


def test_a_key_of_another_and_a_foreign_authority_are_told_apart(
    tmp_path: Path,
) -> None:
    mine = paths(settings(authority(tmp_path / "a")))
    other = paths(settings(authority(tmp_path / "b"), "n2"))

    with pytest.raises(TlsError, match="is not the key of"):
        read(mine[0], other[1], mine[2])
    with pytest.raises(
        TlsError, match="signed by CN=llmgw, which is not a certificate"
    ):
        read(mine[0], mine[1], other[2])


def test_a_key_with_a_password_does_not_ask_at_a_terminal(tmp_path: Path) -> None:
    cert, key, ca = paths(settings(authority(tmp_path)))
    loaded = pki.serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            pki.serialization.Encoding.PEM,
            pki.serialization.PrivateFormat.PKCS8,
            pki.serialization.BestAvailableEncryption(b"secret"),
        )
    )

    with pytest.raises(TlsError, match="encrypted"):
        read(cert, key, ca)


def test_a_new_pair_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    """T38: at once, and file by file with the half-written pair in between."""
    folder = authority(tmp_path)
    tls = settings(folder)
    certificates = Certificates(tls, "n1")
    first = certificates.context()
    assert certificates.context() is first

    fresh = pki.issue(folder, "n1-next", days=60)
    cert, key, _ = paths(tls)
    shutil.copy(fresh.cert_file, cert)

    assert certificates.context() is first
    assert codes(certificates) == ["tls_files"]

    shutil.copy(fresh.key_file, key)
    second = certificates.context()

    assert second is not first
    assert certificates.certificate is not None
    assert certificates.certificate.common_name == "n1-next"
    assert codes(certificates) == ["tls_name"]


def test_a_rotated_authority_with_its_certificates_is_taken_whole(
    tmp_path: Path,
) -> None:
    """T38: the CA first, then the rest: the old ones serve until all three fit."""
    old, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    tls = settings(old)
    fresh = paths(settings(new))
    certificates = Certificates(tls, "n1")
    first = certificates.context()

    seen = [first]
    for source, target in zip(reversed(fresh), reversed(paths(tls)), strict=True):
        shutil.copy(source, target)
        seen.append(certificates.context())

    assert seen[1] is seen[2] is first
    assert seen[3] is not first
    assert codes(certificates) == []


def test_a_half_written_pair_is_said_once_for_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T38. Of logs only the number is looked at: one a connection fills the journal."""
    tls = settings(authority(tmp_path))
    certificates = Certificates(tls, "n1")
    certificates.context()
    paths(tls)[1].write_bytes(b"half a key")
    caplog.clear()

    for _ in range(5):
        certificates.context()

    (problem,) = certificates.problems()
    assert (problem.code, problem.severity) == ("tls_files", "warning")
    assert problem.what.endswith("(the ones read before are still in use)")
    assert len(caplog.records) == 1


def test_files_that_never_fitted_are_an_error_until_they_do(
    tmp_path: Path,
) -> None:
    tls = settings(authority(tmp_path))
    cert = paths(tls)[0]
    cert.rename(cert.with_suffix(".later"))
    certificates = Certificates(tls, "n1")

    with pytest.raises(TlsError, match="No such file"):
        certificates.context()
    (problem,) = certificates.problems()
    assert (problem.code, problem.severity) == ("tls_files", "error")
    assert "still in use" not in problem.what

    cert.with_suffix(".later").rename(cert)
    certificates.context()
    assert codes(certificates) == []


@pytest.mark.parametrize(
    ("days", "code", "severity"),
    [
        (31, None, None),
        (29, "tls_expires", "warning"),
        (6, "tls_expires", "warning"),
        (0.9, "tls_expires", "error"),
        (-1, "tls_expired", "error"),
    ],
)
def test_the_end_is_told_before_it_comes(
    tmp_path: Path, days: float, code: str | None, severity: str | None
) -> None:
    ahead = 90 - days
    certificates = Certificates(
        settings(authority(tmp_path), days=90),
        "n1",
        clock=lambda: time.time() + ahead * DAY,
    )
    certificates.refresh()

    found = [(problem.code, problem.severity) for problem in certificates.problems()]
    assert found == ([] if code is None else [(code, severity)])
    assert certificates.expires_s == pytest.approx(days * DAY, abs=400)


@pytest.mark.parametrize(
    ("life", "left", "severity"),
    [
        (30, 29.9, None),
        (30, 9.9, "warning"),
        (30, 0.4, "warning"),
        (30, 0.3, "error"),
        (1, 0.4, None),
        (1, 0.3, "warning"),
        (365, 29.9, "warning"),
        (365, 31, None),
    ],
)
def test_what_lasts_shortly_is_told_of_in_its_last_third(
    tmp_path: Path, life: float, left: float, severity: str | None
) -> None:
    """One for 30 days warned from its first minute on, one for a day was an error."""
    certificates = Certificates(
        settings(authority(tmp_path), days=life),
        "n1",
        clock=lambda: time.time() + (life - left) * DAY,
    )
    certificates.refresh()

    said = [problem.severity for problem in certificates.problems()]
    assert said == ([] if severity is None else [severity])


def test_each_of_the_three_days_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of logs only the number is looked at."""
    now = time.time()
    clock = iter([0, 59, 61, 62, 82, 84, 84, 88.9, 89.5, 89.6])
    certificates = Certificates(
        settings(authority(tmp_path), days=90),
        "n1",
        clock=lambda: now + next(clock) * DAY,
    )
    for _ in range(10):
        certificates.refresh()

    assert len(caplog.records) == 3


def test_a_certificate_of_the_future_is_a_matter_of_clocks(
    tmp_path: Path,
) -> None:
    """T40: both times are named."""
    tls = settings(authority(tmp_path), starts_in=timedelta(days=2))
    certificates = Certificates(tls, "n1")
    certificates.context()

    (problem,) = certificates.problems()
    assert problem.code == "tls_not_yet"
    assert time.strftime("%Y-%m-%d", time.gmtime()) in problem.what
    assert time.strftime("%Y-%m-%d", time.gmtime(time.time() + 2 * DAY)) in problem.what
    assert problem.fix == "set the clock of this machine"


def test_a_mark_of_a_file_changes_when_it_is_replaced_within_one_tick(
    tmp_path: Path,
) -> None:
    """T38: same size, same time; another file all the same."""
    tls = settings(authority(tmp_path))
    certificates = Certificates(tls, "n1")
    certificates.refresh()
    key = paths(tls)[1]
    then = key.stat()
    beside = key.with_suffix(".x")
    beside.write_bytes(b"x" * then.st_size)
    os.utime(beside, ns=(then.st_atime_ns, then.st_mtime_ns))
    beside.rename(key)

    certificates.refresh()

    assert codes(certificates) == ["tls_files"]


def test_a_key_that_could_not_be_read_is_read_once_it_may_be(tmp_path: Path) -> None:
    """`chmod` and `chown` leave size and time of writing as they were. (Root may read
    all; the loader stands in for a user who may not.)
    """

    def load(cert: Path, key: Path, ca: Path) -> Pair:
        if not key.stat().st_mode & 0o044:
            raise TlsError("cannot be read: Permission denied", where=str(key))
        return read(cert, key, ca)

    tls = settings(authority(tmp_path))
    key = paths(tls)[1]
    key.chmod(0o640)
    certificates = Certificates(tls, "n1", load=load)
    certificates.refresh()
    key.chmod(0o600)
    certificates.refresh()
    assert codes(certificates) == ["tls_files"]

    key.chmod(0o640)
    certificates.refresh()

    assert codes(certificates) == []
