"""SASL OAUTHBEARER (RFC 7628), the client's side: the client logs in with a token. A core.

The first message carries the token. If the broker accepts the token, its answer is empty. If it refuses the
token, it answers with the reasons as JSON, waits for a message of one byte, and then reports that the login
failed.
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
    """A token with its expiry time and extensions. A token provider returns it, or only the token as a str.

    `expires_at` is a datetime with a time zone, or seconds since 1970. A token with `expires_at` is kept and
    used for further logins until most of its lifetime is over. Without it, the provider is called for every
    login. `extensions` are sent to the broker with the token (KIP-342).
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
    """The return value of a token provider as an OAuthToken. Raises ValueError if it cannot be sent."""
    found = given if isinstance(given, OAuthToken) else OAuthToken(given) if isinstance(given, str) else None
    if found is None or not isinstance(found.token, str):
        raise ValueError(f"it returned {type(given).__name__}, not a str or an OAuthToken")
    if not _TOKEN.fullmatch(found.token):
        raise ValueError("it returned a token with characters that are not allowed in a token")
    expires_at = found.expires_at
    if isinstance(expires_at, datetime):
        if expires_at.tzinfo is None:
            raise ValueError("it returned an expires_at without a time zone")
    elif expires_at is not None and not isinstance(expires_at, int | float):
        raise ValueError(f"it returned {type(expires_at).__name__} as expires_at, not a datetime or seconds")
    for name, value in found.extensions.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == _RESERVED_EXTENSION:
            raise ValueError(
                f"it returned an extension named {name!r}; expected letters only, and not 'auth'"
            )
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ValueError(f"the extension {name!r} has characters that cannot be sent")
    return found


def expiry_seconds(token: OAuthToken) -> float | None:
    """When a token expires, in seconds since 1970; None if `expires_at` is not set."""
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
        """A challenge means that the token is refused. The broker waits for one byte, then reports the
        failure."""
        return _SEPARATOR.encode() if challenge else None
