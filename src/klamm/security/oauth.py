"""SASL OAUTHBEARER (RFC 7628), the client's side: a token of an issuer proves who we are. A core.

The first message carries the token. A broker that accepts the token answers with nothing. One that refuses it
answers with its reasons as JSON, waits for a message of one byte, and then says that the login failed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

_SEPARATOR = "\x01"
_TOKEN = re.compile(r"[-A-Za-z0-9._~+/]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7E \t\r\n]*")
_RESERVED_EXTENSION = "auth"


class OAuthToken(NamedTuple):
    """What a provider of tokens returns, if it has more to say than the token itself.

    `expires_at` is a datetime with a time zone, or seconds since 1970. A token that says when it expires is
    kept and used for several connections until most of its life is over; of one that does not, every login
    gets a new one. `extensions` are sent to the broker with the token (KIP-342).
    """

    token: str
    expires_at: datetime | float | None = None
    extensions: Mapping[str, str] = {}

    def __repr__(self) -> str:
        """Without the token, which must not get into logs."""
        return f"OAuthToken(expires_at={self.expires_at!r}, extensions={sorted(self.extensions)})"


TokenGiven: TypeAlias = str | OAuthToken

TokenProvider: TypeAlias = Callable[[], TokenGiven | Awaitable[TokenGiven]]
"""A function, or a coroutine function, that returns a token."""


def checked_token(given: object) -> OAuthToken:
    """What a provider returned, as a token that can be sent. ValueError says what is wrong with it."""
    found = given if isinstance(given, OAuthToken) else OAuthToken(given) if isinstance(given, str) else None
    if found is None or not isinstance(found.token, str):
        raise ValueError(f"it returned {type(given).__name__}, not a str or an OAuthToken")
    if not _TOKEN.fullmatch(found.token):
        raise ValueError("it returned a token with characters that no token has")
    expires_at = found.expires_at
    if isinstance(expires_at, datetime):
        if expires_at.tzinfo is None:
            raise ValueError("it returned an expires_at without a time zone")
    elif expires_at is not None and not isinstance(expires_at, int | float):
        raise ValueError(f"it returned {type(expires_at).__name__} as expires_at, not a datetime or seconds")
    for name, value in found.extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == _RESERVED_EXTENSION:
            raise ValueError(f"it returned an extension named {name!r}; names are letters, and not 'auth'")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ValueError(f"the extension {name!r} has characters that cannot be sent")
    return found


def expiry_seconds(token: OAuthToken) -> float | None:
    """When a token expires, in seconds since 1970; None if it does not say."""
    expires_at = token.expires_at
    return expires_at.timestamp() if isinstance(expires_at, datetime) else expires_at


class OAuthLogin:
    """One login with a token."""

    is_slow = False

    def __init__(self, token: OAuthToken) -> None:
        fields = [
            f"auth=Bearer {token.token}",
            *(f"{name}={value}" for name, value in token.extensions.items()),
        ]
        self._message = _SEPARATOR.join(["n,,", *fields, "", ""]).encode("ascii")

    def start(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        """A challenge is a refusal; the broker waits for one byte before it says that the login failed."""
        return _SEPARATOR.encode() if challenge else None
