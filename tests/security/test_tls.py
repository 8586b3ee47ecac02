from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from klamm.config.client_config import ClientConfig
from klamm.config.rows import ConfigError
from klamm.security.tls import client_ssl_context, explain_tls_error, may_pass
from tests.client.secured import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def context_of(**options: object) -> ssl.SSLContext:
    return client_ssl_context(ClientConfig("admin", "a:1", None, {"security_protocol": "SSL", **options}))


def test_certificates_and_names_are_checked_unless_told_otherwise(certificates: Certificates) -> None:
    context = context_of()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    unchecked = context_of(ssl_endpoint_identification_algorithm="none")
    assert unchecked.verify_mode is ssl.CERT_REQUIRED
    assert not unchecked.check_hostname
    own = context_of(ssl_ca_location=certificates.authority)
    assert [dict(each[0] for each in ca["subject"])["commonName"] for ca in own.get_ca_certs()] == [
        "authority"
    ]


def test_files_that_are_of_no_use(certificates: Certificates, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location='/nowhere' is refused: No such file"):
        context_of(ssl_ca_location="/nowhere")
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location=.* PEM"):
        context_of(ssl_ca_location=garbage)
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location="):
        context_of(ssl_certificate_location=garbage, ssl_key_location=certificates.client_key)
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location="):
        context_of(
            ssl_certificate_location=certificates.client,
            ssl_key_location=certificates.directory / "stranger-key.pem",
        )
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location is missing"):
        context_of(ssl_key_location=certificates.client_key)


def test_a_file_with_certificate_and_key(certificates: Certificates) -> None:
    context_of(ssl_certificate_location=certificates.broker)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("WRONG_VERSION_NUMBER", "PLAINTEXT"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "ssl_certificate_location"),
    ],
)
def test_what_errors_mean(reason: str, advice: str) -> None:
    error = ssl.SSLError(1, "x")
    error.reason = reason
    assert advice in explain_tls_error(error)[1]
    assert not may_pass(error)


def test_errors_that_are_not_about_certificates_may_pass() -> None:
    for reason in ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "TLSV1_ALERT_INTERNAL_ERROR", None):
        error = ssl.SSLError(1, "x")
        error.reason = reason  # type: ignore[assignment]
        assert may_pass(error)
    assert not may_pass(ssl.SSLCertVerificationError(1, "x"))


def test_who_hangs_up_says_nothing() -> None:
    for error in (ConnectionResetError(), ssl.SSLEOFError(8, "EOF")):
        assert may_pass(error)
        assert "PLAINTEXT" in explain_tls_error(error)[1]
