"""TLS from the configuration's ssl.* keys, and what an error of it means to a user.

Certificates are checked, and so is the host's name in them, unless the user says not to. Nothing below
TLS 1.2 is spoken.
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
    """A context for connections to brokers. ConfigError names the key whose file is of no use."""
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
    """Gives the key's password when OpenSSL asks for it, which would ask at the terminal otherwise."""

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
        reason = f"it does not hold what it should, in PEM form ({error.reason or error})"
    return ConfigError(f"{key}={path!r} is refused: {reason}", key=key)


def explain_tls_error(error: Exception) -> tuple[str, str]:
    """What went wrong in a handshake, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_NAME_MISMATCH:
            return (
                f"its certificate is for another host ({error.verify_message})",
                "Connect to a name that is in the certificate, or set ssl_endpoint_identification_algorithm "
                "to none if you can do without this check",
            )
        if error.verify_code in _NOT_YET_OR_NO_MORE_VALID:
            return f"{error.verify_message}", "Renew the broker's certificate, or set the clock right"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return (
                f"its certificate comes from an authority that is not trusted ({error.verify_message})",
                "Give the authority's certificate as ssl_ca_location",
            )
        return f"its certificate is refused: {error.verify_message}", "Look at the broker's certificate"
    reason = getattr(error, "reason", None) or ""
    if reason in _NO_TLS_THERE:
        return (
            "it does not speak TLS",
            "Set security_protocol to PLAINTEXT or SASL_PLAINTEXT, or use its TLS port",
        )
    if any(each in reason for each in _OURS_REFUSED):
        return (
            f"it refused us ({reason.replace('_', ' ').lower()})",
            "Give a certificate that the broker trusts as ssl_certificate_location and ssl_key_location",
        )
    if isinstance(error, ssl.SSLEOFError | ConnectionError | EOFError):
        return (
            "it closed the connection in the middle of the handshake",
            "Look whether the port is one with TLS; else use security_protocol PLAINTEXT or SASL_PLAINTEXT",
        )
    return str(error), "Look at the broker's TLS settings"


def may_pass(error: Exception) -> bool:
    """True if another handshake may succeed: the error is not about certificates, or about TLS at all."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    reason = getattr(error, "reason", None) or ""
    return reason not in _NO_TLS_THERE and not any(each in reason for each in _LASTING)
