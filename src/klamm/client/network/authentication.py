"""The login on a connection, and its renewal before it runs out (KIP-368).

A broker that limits how long a login lasts says so in its answer. The login is then renewed on the living
connection: further requests are delayed meanwhile, and requests under way are answered first.
"""

from __future__ import annotations

import asyncio
import random
import secrets

from klamm.client.errors import AuthenticationFailed, ClientError
from klamm.client.network.connection import BrokerConnection
from klamm.client.network.tokens import TokenCredentials
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.security.sasl import SaslCredentials, SaslRefused

MOST_STEPS = 10
"""The most messages of one login; SCRAM takes two. It ends a login with a server that never finishes."""

RENEW_FROM, RENEW_TO = 0.85, 0.95
"""A login is renewed after a random share of its lifetime between these: connections renew at different
times."""

_NONCE_BYTES = 24
_HANDSHAKE_WITH_MESSAGES = 1
"""The first version after which the mechanism's messages are sent as SaslAuthenticate requests."""


async def authenticate(connection: BrokerConnection, credentials: SaslCredentials, timeout: float) -> float:
    """Log in. Returns for how many seconds the login is valid; 0 means without limit."""
    address = connection.address
    if not connection.supports(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_WITH_MESSAGES):
        raise AuthenticationFailed(
            f"{address} does not offer a login with SASL",
            advice="Set security_protocol to PLAINTEXT or SSL, or use the listener that asks for a login",
        )
    handshake: SaslHandshakeResponse = await connection.send_first(
        SaslHandshakeRequest(mechanism=credentials.mechanism), _HANDSHAKE_WITH_MESSAGES, timeout
    )
    if handshake.error_code != ErrorCode.NONE:
        raise _refused_handshake(handshake, connection, credentials)
    version = connection.version(ApiKey.SASL_AUTHENTICATE)
    tokens = credentials if isinstance(credentials, TokenCredentials) else None
    if tokens is not None:
        await tokens.refresh(timeout)
    login = credentials.login(secrets.token_urlsafe(_NONCE_BYTES))
    message: bytes | None = login.start()
    lifetime_ms = 0
    for _ in range(MOST_STEPS):
        if message is None:
            return lifetime_ms / 1000
        answer: SaslAuthenticateResponse = await connection.send_first(
            SaslAuthenticateRequest(auth_bytes=message), version, timeout
        )
        if answer.error_code != ErrorCode.NONE:
            raise _refused_login(answer, connection, tokens)
        lifetime_ms = answer.session_lifetime_ms
        try:
            challenge = bytes(answer.auth_bytes)
            if login.is_slow:
                message = await asyncio.to_thread(login.answer, challenge)
            else:
                message = login.answer(challenge)
        except SaslRefused as error:
            raise AuthenticationFailed(f"the login to {address} failed: {error}") from None
    raise AuthenticationFailed(f"the login to {address} took more than {MOST_STEPS} steps")


def _refused_login(
    answer: SaslAuthenticateResponse, connection: BrokerConnection, tokens: TokenCredentials | None
) -> AuthenticationFailed:
    error = AuthenticationFailed(
        f"{connection.address} did not accept the login: {answer.error_message or 'it gave no reason'}",
        code=ErrorCode(answer.error_code),
        advice="Look at sasl_username, sasl_password and sasl_mechanism"
        if tokens is None
        else "Look at the token: its issuer, its audience, when it expires",
    )
    if tokens is not None:
        tokens.forget()
        error.retriable = not tokens.is_new  # a token that was kept may have been revoked
    return error


def _refused_handshake(
    handshake: SaslHandshakeResponse, connection: BrokerConnection, credentials: SaslCredentials
) -> AuthenticationFailed:
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(handshake.mechanisms)) or "none"
        return AuthenticationFailed(
            f"{connection.address} does not take {credentials.mechanism}; it offers: {offered}",
            code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            advice="Set sasl_mechanism to one of these",
        )
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        return AuthenticationFailed(
            f"{connection.address} does not ask for a login",
            code=ErrorCode.ILLEGAL_SASL_STATE,
            advice="Set security_protocol to PLAINTEXT or SSL, or use the listener that asks for a login",
        )
    return AuthenticationFailed(
        f"{connection.address} refused to begin the login with error {handshake.error_code}"
    )


async def keep_authenticated(
    connection: BrokerConnection, credentials: SaslCredentials, lifetime: float, timeout: float
) -> None:
    """Renew the login before it expires, until the connection ends. A renewal that fails closes it."""
    while lifetime > 0 and not connection.closed:
        await asyncio.sleep(lifetime * random.uniform(RENEW_FROM, RENEW_TO))
        if connection.closed:
            return
        connection.delay_requests()
        try:
            lifetime = await authenticate(connection, credentials, timeout)
        except ClientError as error:
            connection.close(error)
            return
        connection.send_delayed()
