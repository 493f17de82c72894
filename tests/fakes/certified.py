"""Certificates made by the project, for both ends of a test."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmgw import pki
from llmgw.config.keys import Tls
from llmgw.tls import Certificates


def authority(folder: Path) -> Path:
    pki.init(folder)
    return folder


def server_side(
    folder: Path,
    *,
    name: str = "cp",
    sans: tuple[str, ...] = ("127.0.0.1", "::1", "localhost"),
    starts_in: timedelta = timedelta(minutes=-5),
    days: float = 1.0,
    trusts: Path | None = None,
) -> ssl.SSLContext:
    """A control plane's end, which asks for a certificate."""
    starts = datetime.now(UTC) + starts_in
    made = pki.issue(folder, name, sans=sans, starts=starts, days=days, force=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(made.cert_file, made.key_file)
    context.load_verify_locations((trusts or folder) / "ca.crt")
    return context


def control_plane(folder: Path) -> Tls:
    """A control plane's files, as it is started with them."""
    made = pki.issue(folder, "cp", sans=("127.0.0.1",), force=True)
    return Tls(
        cert_file=str(made.cert_file),
        key_file=str(made.key_file),
        ca_file=str(made.ca_file),
    )


def settings(
    folder: Path,
    name: str = "n1",
    *,
    starts_in: timedelta = timedelta(minutes=-5),
    days: float = 90.0,
    server_name: str | None = None,
) -> Tls:
    """A node's end, as written in its file."""
    starts = datetime.now(UTC) + starts_in
    made = pki.issue(folder, name, starts=starts, days=days, force=True)
    return Tls(
        cert_file=str(made.cert_file),
        key_file=str(made.key_file),
        ca_file=str(made.ca_file),
        server_name=server_name,
    )


def certificates(folder: Path, name: str = "n1") -> Certificates:
    return Certificates(settings(folder, name), name)
