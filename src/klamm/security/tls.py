"""The TLS context of a client from its ssl.* keys, and explanations of TLS errors for users.

The broker's certificate is always checked. The host name in it is checked unless the user turns that off. TLS
versions below 1.2 are not used.
"""

from __future__ import annotations

import ssl

from klamm.config.rows import ConfigError
from klamm.config.values import ConfigValues

_HOST_NAME_MISMATCH = frozenset({62, 64})
_NOT_YET_OR_NO_MORE_VALID = frozenset({9, 10})
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})

_NO_TLS_THERE = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}
)
_OURS_REFUSED = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
    "CERTIFICATE_EXPIRED",
)
_LASTING = (
    *_OURS_REFUSED,
    "UNSUPPORTED_PROTOCOL",
    "ALERT_PROTOCOL_VERSION",
    "NO_SHARED_CIPHER",
    "ACCESS_DENIED",
)


def client_ssl_context(config: ConfigValues) -> ssl.SSLContext:
    """A context for connections to brokers. Raises ConfigError with the key whose file cannot be used."""
    authorities = config.optional_str("ssl.ca.location")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise _file_error("ssl.ca.location", authorities, error) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = config.str_("ssl.endpoint.identification.algorithm") == "https"
    certificate = config.optional_str("ssl.certificate.location")
    key = config.optional_str("ssl.key.location")
    if certificate is None:
        if key is not None:
            raise ConfigError(
                f"ssl.key.location={key!r} is refused: ssl.certificate.location is missing",
                key="ssl.key.location",
            )
        return context
    try:
        context.load_cert_chain(certificate, key, _password_of(config, key or certificate))
    except (OSError, ssl.SSLError) as error:
        raise _file_error("ssl.certificate.location", certificate, error) from None
    return context


class _password_of:
    """Returns the password of the private key to OpenSSL, which would otherwise prompt for it at the
    terminal."""

    def __init__(self, config: ConfigValues, path: str) -> None:
        self._password = config.optional_str("ssl.key.password")
        self._path = path

    def __call__(self) -> str:
        if self._password is None:
            raise ConfigError(
                f"the key in {self._path!r} has a password: give it as ssl.key.password",
                key="ssl.key.password",
            )
        return self._password


def _file_error(key: str, path: str | None, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, ssl.SSLError):
        reason = f"the file is not a valid PEM file for this key ({error.reason or error})"
    return ConfigError(f"{key}={path!r} is refused: {reason}", key=key)


def explain_tls_error(error: Exception) -> tuple[str, str]:
    """What went wrong in a TLS handshake, and what the user can do. "It" in the first text is the broker."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_NAME_MISMATCH:
            return (
                f"its certificate is for another host ({error.verify_message})",
                "Connect to a name that is in the certificate, or set ssl_endpoint_identification_algorithm "
                "to none to skip this check",
            )
        if error.verify_code in _NOT_YET_OR_NO_MORE_VALID:
            return (
                f"{error.verify_message}",
                "Renew the broker's certificate, or correct the clock of this machine",
            )
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return (
                f"its certificate comes from an authority that is not trusted ({error.verify_message})",
                "Set ssl_ca_location to a file with the authority's certificate",
            )
        return f"its certificate is refused: {error.verify_message}", "Check the broker's certificate"
    reason = getattr(error, "reason", None) or ""
    if reason in _NO_TLS_THERE:
        return (
            "it does not speak TLS",
            "Set security_protocol to PLAINTEXT or SASL_PLAINTEXT, or use its TLS port",
        )
    if any(each in reason for each in _OURS_REFUSED):
        return (
            f"it refused the client's certificate ({reason.replace('_', ' ').lower()})",
            "Set ssl_certificate_location and ssl_key_location to a certificate that the broker trusts",
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionError | EOFError):
        return (
            "it closed the connection in the middle of the handshake",
            "Check that the port speaks TLS; if it does not, use security_protocol PLAINTEXT or "
            "SASL_PLAINTEXT",
        )
    return str(error), "Check the broker's TLS settings"


def may_pass(error: Exception) -> bool:
    """True if another handshake may succeed: the error is neither a refused certificate nor a missing TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    reason = getattr(error, "reason", None) or ""
    return reason not in _NO_TLS_THERE and not any(each in reason for each in _LASTING)
