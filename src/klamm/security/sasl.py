"""SASL mechanisms, the client's side: what to say, given what the server said. A core.

    login = credentials.login(nonce)
    to_send = login.start()
    while to_send is not None:
        to_send = login.answer(server_said)         # SaslRefused: the server did not take it, or is false

PLAIN sends the password as it is, so it belongs inside TLS. SCRAM never sends it. OAUTHBEARER is in oauth.py.
"""

from __future__ import annotations

from typing import Protocol

from klamm.security.scram import HASHES, ScramCredentials, ScramError, ScramExchange

MECHANISMS = ("PLAIN", *HASHES)


class SaslRefused(Exception):
    """The exchange failed, and says why."""


class SaslLogin(Protocol):
    """One login."""

    is_slow: bool
    """Whether the next `answer` takes milliseconds: deriving keys from a password does, on purpose."""

    def start(self) -> bytes:
        """The first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message, or None when both sides are content."""


class SaslCredentials(Protocol):
    """A mechanism, a name and a password."""

    mechanism: str

    def login(self, nonce: str) -> SaslLogin:
        """Begin a login. `nonce`: printable ASCII without commas, never used before."""


def sasl_credentials(mechanism: str, username: str, password: str) -> SaslCredentials:
    """ValueError when the mechanism is not known, or a character is not allowed."""
    if mechanism == "PLAIN":
        return PlainCredentials(username, password)
    if mechanism in HASHES:
        return _Scram(mechanism, username, password)
    raise ValueError(f"the mechanism {mechanism} is not known, only {', '.join(MECHANISMS)}")


class PlainCredentials:
    """RFC 4616."""

    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ValueError("a name or password with a NUL cannot be sent")
        # Kafka compares the bytes as they come, so they are sent as they are.
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
