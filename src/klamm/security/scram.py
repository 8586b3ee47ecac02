"""SCRAM (RFC 5802, RFC 7677), the client's side: it proves that it knows the password, without sending it. A
core.

The server must prove that it knows the password too; if it cannot, the login fails, because the server may
not be the real broker. Deriving keys from the password is slow on purpose, so they are kept for each salt.

User names and passwords are encoded as UTF-8 without SASLprep, unlike in the RFC: neither Kafka nor its
clients apply SASLprep, so a prepared password would not match.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS = 4096
"""The least that RFC 7677 allows: with fewer, a password could be guessed from a stolen proof. Kafka's
minimum too."""

MAX_ITERATIONS = 1_000_000
"""About a second of work. Kafka's maximum is 16384, so a server that asks for more is not honest."""

_MOST_KEYS = 8
"""How many salts have their keys kept. A cluster has one salt per user, and a few while credentials
change."""

_NO_CHANNEL_BINDING = "n,,"


class ScramError(Exception):
    """The server's message violates SCRAM, refuses the login, or does not prove that the server knows the
    password."""


class ScramCredentials:
    """A user name, a password, and the keys derived from them."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        self.mechanism = mechanism
        self.hash_name = HASHES[mechanism]
        self.username = username.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()
        self._keys: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}

    def keys(self, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
        """The client key and the server key. Slow the first time."""
        known = self._keys.get((salt, iterations))
        if known is None:
            salted = hashlib.pbkdf2_hmac(self.hash_name, self._password, salt, iterations)
            known = self._hmac(salted, b"Client Key"), self._hmac(salted, b"Server Key")
            while len(self._keys) >= _MOST_KEYS:
                self._keys.pop(next(iter(self._keys)))
            self._keys[salt, iterations] = known
        return known

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.hash_name)


class ScramExchange:
    """One login: `first`, then `final` with the server's first message, then `verify` with its final
    message."""

    def __init__(self, credentials: ScramCredentials, nonce: str) -> None:
        """`nonce` is printable ASCII without commas and must be new for each login."""
        self._credentials = credentials
        self._nonce = nonce
        self._first_bare = f"n={credentials.username},r={nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return (_NO_CHANNEL_BINDING + self._first_bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The message with the proof, made with the salt, the iterations and the nonce of the server's
        message."""
        text = _text(server_first)
        fields = _fields(text)
        if "m" in fields:
            raise ScramError("the server requires a SCRAM extension that Klamm does not know")
        _refuse_error(fields)
        nonce, salt, iterations = self._server_fields(fields)
        client_key, server_key = self._credentials.keys(salt, iterations)
        binding = base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = f"{self._first_bare},{text},{without_proof}".encode()
        hash_name = self._credentials.hash_name
        stored_key = hashlib.new(hash_name, client_key).digest()
        signature = hmac.digest(stored_key, message, hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(server_key, message, hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise ScramError if the server does not prove that it knows the password."""
        assert self._server_signature is not None, "`final` comes before `verify`"
        fields = _fields(_text(server_final))
        _refuse_error(fields)
        signature = _decoded(fields.get("v", ""), "signature")
        if not hmac.compare_digest(signature, self._server_signature):
            raise ScramError(
                "the server did not prove that it knows the password: it may not be the real broker"
            )

    def _server_fields(self, fields: Mapping[str, str]) -> tuple[str, bytes, int]:
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the server's nonce does not begin with the client's nonce")
        salt = _decoded(fields.get("s", ""), "salt")
        if not salt:
            raise ScramError("the server sent no salt")
        text = fields.get("i", "")
        iterations = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise ScramError(
                f"the server asks for {text or 'no'} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are "
                "allowed"
            )
        return nonce, salt, iterations


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("the server's message is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """The `letter=value` pairs of a message."""
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if len(name) != 1 or not separator or name in fields:
            raise ScramError("the server's message is not a valid SCRAM message")
        fields[name] = value
    return fields


def _refuse_error(fields: Mapping[str, str]) -> None:
    if "e" in fields:
        raise ScramError(f"the server refused the login: {fields['e']}")


def _decoded(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError(f"the server's {what} is not base64") from None
