"""Why a TLS handshake failed, in the words of the one who can mend it."""

import ssl
import time

from msgspec import Struct

from llmgw.dates import shown


class Called(Struct, frozen=True, kw_only=True):
    """What the reader of a message calls that which he can set."""

    ca: str = "tls.ca_file"
    off: str = "unset tls"
    name: str = ", or set tls.server_name"


IN_THE_FILE = Called()


def explain(error: ssl.SSLError, called: Called = IN_THE_FILE) -> tuple[str, str]:
    """What an operator has to know of a TLS failure, and what helps ("" if unknown)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrusted(error, called)
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return (
            "does not speak TLS there",
            f"write http:// and {called.off}, or the TLS port",
        )
    if "ALERT" in reason:
        return _refused(reason)
    return f"the TLS handshake ended: {error.reason or error}", ""


def _distrusted(error: ssl.SSLCertVerificationError, called: Called) -> tuple[str, str]:
    # Numbers of X509_V_ERR_*: the module gives them no names.
    now = shown(time.time())
    match error.verify_code:
        case 9:
            return (
                "its certificate is not yet valid by this machine's clock, "
                f"which says {now}",
                "set the clock of this machine (or of the one that issued it)",
            )
        case 10:
            return (
                "its certificate has expired by this machine's clock, "
                f"which says {now}",
                "renew it, or set the clock of this machine",
            )
        case 18 | 19 | 20 | 21:
            return (
                f"its certificate is not signed by a CA in {called.ca}",
                f"is it the right one, and the right {called.ca}?",
            )
        case 62 | 64:
            return (
                f"its certificate is for another name: {error.verify_message}",
                f"write the server as its certificate has it{called.name}",
            )
        case _:
            return f"its certificate is refused: {error.verify_message}", ""


def _refused(reason: str) -> tuple[str, str]:
    # The other side's words for this node's certificate.
    for mark, what in (
        ("CERTIFICATE_EXPIRED", "it says that it has expired (by its clock)"),
        ("UNKNOWN_CA", "it is not signed by a CA that it trusts"),
        ("CERTIFICATE_REQUIRED", "it got none"),
        ("CERTIFICATE_REVOKED", "it is revoked"),
        ("BAD_CERTIFICATE", "it says no more"),
        ("CERTIFICATE_UNKNOWN", "it says no more"),
        ("UNSUPPORTED_CERTIFICATE", "it may not be used by a client"),
    ):
        if mark in reason:
            return f"refuses this node's certificate: {what}", "see its log"
    return f"ended the TLS handshake: {reason.lower().replace('_', ' ')}", ""
