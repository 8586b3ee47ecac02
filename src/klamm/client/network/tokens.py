"""Tokens for logins with OAUTHBEARER: the user's provider gives them, and they are kept while they are fresh.

All connections of a client share one token. When most of its lifetime is over, the provider is asked for the
next one, so that no login, and no renewal of a login, uses a token that is about to expire. A provider that
is a plain function runs in a thread, because it may ask a server.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

from klamm.client.errors import AuthenticationFailed
from klamm.security.oauth import OAuthLogin, OAuthToken, TokenProvider, checked_token, expiry_seconds
from klamm.security.sasl import SaslLogin

FRESH_SHARE = 0.8
"""The share of a token's lifetime in which it is used for new logins. A login is valid as long as its token,
and is renewed after more than this share, so a renewal always uses a new token."""


class TokenCredentials:
    """The tokens of one client. `clock` is in seconds since 1970."""

    mechanism = "OAUTHBEARER"

    def __init__(self, provider: TokenProvider, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._clock = clock
        self._token: OAuthToken | None = None
        self._fresh_until = 0.0
        self._asking = asyncio.Lock()
        self.is_new = False
        """True if the latest `refresh` got a new token, False if it used the one that was kept."""

    async def refresh(self, timeout: float) -> None:
        """Get a token from the provider, unless there is a fresh one. Raises AuthenticationFailed if the
        provider gives none in time."""
        async with self._asking:
            self.is_new = self._token is None or self._clock() >= self._fresh_until
            if not self.is_new:
                return
            asked_at = self._clock()
            try:
                async with asyncio.timeout(timeout):
                    given = await self._ask()
            except TimeoutError:
                raise _failed(f"it gave no token within {timeout:g} s", is_final=False) from None
            except Exception as error:
                raise _failed(f"{type(error).__name__}: {error}", is_final=False) from error
            try:
                token = checked_token(given)
            except ValueError as error:
                raise _failed(str(error), is_final=True) from None
            self._token = token
            expires_at = expiry_seconds(token)
            life = 0.0 if expires_at is None else expires_at - asked_at
            self._fresh_until = asked_at + life * FRESH_SHARE

    def forget(self) -> None:
        """Drop the token, because the broker refused it: the next login gets another."""
        self._token = None

    def login(self, nonce: str) -> SaslLogin:
        """Begin a login with the token of the latest `refresh`."""
        assert self._token is not None
        return OAuthLogin(self._token)

    async def _ask(self) -> Any:
        if inspect.iscoroutinefunction(self._provider):
            return await self._provider()
        given = await asyncio.to_thread(self._provider)
        return await given if inspect.isawaitable(given) else given


def _failed(problem: str, *, is_final: bool) -> AuthenticationFailed:
    error = AuthenticationFailed(
        f"sasl_oauth_token_provider failed: {problem}",
        advice="It must return a token as str, or a klamm.OAuthToken",
    )
    error.retriable = not is_final  # the server that issues tokens may be back soon
    return error
