"""SASL mechanisms, the client's side: which message to send, given the server's last message. A core.

    login = credentials.login(nonce)
    to_send = login.start()
    while to_send is not None:
        to_send = login.answer(server_said)         # raises SaslRefused

PLAIN sends the password in clear text, so use it only with TLS. SCRAM never sends the password. OAUTHBEARER
is in oauth.py.
"""

from __future__ import annotations

from typing import Protocol

from klamm.security.scram import HASHES, ScramCredentials, ScramError, ScramExchange

MECHANISMS = ("PLAIN", *HASHES)


class SaslRefused(Exception):
    """The login failed; the text says why."""


class SaslLogin(Protocol):
    """One login."""

    is_slow: bool
    """True if the next `answer` takes milliseconds, because it derives keys from the password."""

    def start(self) -> bytes:
        """The first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message to send, or None if the login is complete. Raises SaslRefused if it failed."""


class SaslCredentials(Protocol):
    """A mechanism, a user name and a password."""

    mechanism: str

    def login(self, nonce: str) -> SaslLogin:
        """Start a login. `nonce` is printable ASCII without commas and must be new for each login."""


def sasl_credentials(mechanism: str, username: str, password: str) -> SaslCredentials:
    """Raises ValueError if the mechanism is unknown, or the name or the password has a character not
    allowed."""
    if mechanism == "PLAIN":
        return PlainCredentials(username, password)
    if mechanism in HASHES:
        return _Scram(mechanism, username, password)
    raise ValueError(f"unknown SASL mechanism {mechanism}: expected one of {', '.join(MECHANISMS)}")


class PlainCredentials:
    """RFC 4616."""

    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("sasl.username and sasl.password must not contain a NUL character")
        # Kafka compares the bytes without preparing them (SASLprep), so they are not prepared here either.
        self._message = f"\0{username}\0{password}".encode()

    def login(self, nonce: str) -> SaslLogin:
        return _PlainLogin(self._message)


class _PlainLogin:
    is_slow = False

    def __init__(self, message: bytes) -> None:
        self._message = message

    def start(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class _Scram:
    def __init__(self, mechanism: str, username: str, password: str) -> None:
        self.mechanism = mechanism
        self._credentials = ScramCredentials(mechanism, username, password)

    def login(self, nonce: str) -> SaslLogin:
        return _ScramLogin(ScramExchange(self._credentials, nonce))


class _ScramLogin:
    def __init__(self, exchange: ScramExchange) -> None:
        self._exchange = exchange
        self.is_slow = True

    def start(self) -> bytes:
        return self._exchange.first()

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            if not self.is_slow:
                self._exchange.verify(challenge)
                return None
            self.is_slow = False
            return self._exchange.final(challenge)
        except ScramError as error:
            raise SaslRefused(str(error)) from None
