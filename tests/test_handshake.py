"""What is said of a handshake that failed."""

import ssl

from llmgw.handshake import Called, explain


def test_what_is_set_is_called_what_its_reader_calls_it() -> None:
    """`llmgw conformance` has no file, and named tls.ca_file."""
    error = ssl.SSLCertVerificationError()
    error.verify_code = 20
    typed = Called(ca="--tls-ca", off="leave out --tls-ca", name="")

    assert explain(error)[0].endswith("tls.ca_file")
    assert "--tls-ca" in " ".join(explain(error, typed))
    assert "tls." not in " ".join(explain(error, typed))


def test_an_alert_nobody_listed_is_still_told() -> None:
    error = ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] internal error")
    error.reason = "TLSV1_ALERT_INTERNAL_ERROR"

    assert "internal error" in explain(error)[0]
