"""Logins with tokens: when the provider is asked, what it may be, and what is heard when it fails."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import klamm
from klamm.client.errors import AuthenticationFailed, ClientError, TimedOut
from klamm.client.network.tokens import FRESH_SHARE, TokenCredentials
from klamm.config.client_config import ClientConfig
from klamm.config.rows import ConfigError
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k17_sasl_handshake import SaslHandshakeResponse
from klamm.protocol.messages.k36_sasl_authenticate import SaslAuthenticateResponse
from tests.client.network.clean import network_to
from tests.client.network.fake_broker import FakeBroker
from tests.waiting import until

LIMIT_S = 20.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def message_of(credentials: TokenCredentials) -> bytes:
    return credentials.login("nonce").start()


async def test_a_token_is_kept_until_most_of_its_life_is_over() -> None:
    clock = Clock()
    tokens = iter("abc")
    credentials = TokenCredentials(lambda: klamm.OAuthToken(next(tokens), clock.now + 100.0), clock)
    for moment, token in ((0.0, "a"), (100 * FRESH_SHARE - 1, "a"), (100 * FRESH_SHARE, "b")):
        clock.now = 1000.0 + moment
        await credentials.refresh(LIMIT_S)
        assert message_of(credentials) == f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    credentials.forget()
    await credentials.refresh(LIMIT_S)
    assert b"Bearer c" in message_of(credentials)


async def test_without_an_expiry_every_login_asks() -> None:
    tokens = iter("abc")
    credentials = TokenCredentials(lambda: next(tokens))
    for token in b"abc":
        await credentials.refresh(LIMIT_S)
        assert bytes([token]) in message_of(credentials)


async def test_a_plain_provider_runs_beside_the_loop_and_a_coroutine_on_it() -> None:
    ran_on: list[threading.Thread] = []

    def plain() -> str:
        ran_on.append(threading.current_thread())
        return "t"

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return plain()

    class WithCall:
        async def __call__(self) -> str:
            return plain()

    for provider in (plain, coroutine, WithCall()):
        await TokenCredentials(provider).refresh(LIMIT_S)
    here = threading.current_thread()
    assert [thread is here for thread in ran_on] == [False, True, True]


async def test_logins_at_once_share_one_question() -> None:
    asked = 0

    async def provider() -> klamm.OAuthToken:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return klamm.OAuthToken("t", 4e9)

    credentials = TokenCredentials(provider)
    await asyncio.gather(*(credentials.refresh(LIMIT_S) for _ in range(5)))
    assert asked == 1


async def test_a_provider_that_hangs_or_fails_may_do_better_later() -> None:
    async def hangs() -> str:
        await asyncio.Event().wait()
        return ""

    with pytest.raises(AuthenticationFailed, match=r"no token within 0\.01 s") as caught:
        await TokenCredentials(hangs).refresh(0.01)
    assert caught.value.retriable

    def fails() -> str:
        raise ValueError("the issuer answered 503")

    with pytest.raises(AuthenticationFailed, match=r"provider failed: ValueError: .* 503") as failed:
        await TokenCredentials(fails).refresh(LIMIT_S)
    assert failed.value.retriable
    with pytest.raises(AuthenticationFailed, match="not a str or an OAuthToken") as wrong:
        await TokenCredentials(lambda: 5).refresh(LIMIT_S)  # type: ignore[arg-type,return-value]
    assert not wrong.value.retriable


# ---- settings

OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_oauth_token_provider": lambda: "t"}


def test_a_provider_is_enough() -> None:
    assert ClientConfig("admin", "a:1", None, OAUTH)["sasl.mechanism"] == "OAUTHBEARER"
    in_mapping = {"security.protocol": "SASL_SSL", "sasl.oauth.token.provider": lambda: "t"}
    assert ClientConfig("admin", "a:1", in_mapping).token_provider is not None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"sasl_oauth_token_provider": None, "sasl_mechanism": "OAUTHBEARER"},
            "needs the argument sasl_oauth",
        ),
        ({"sasl_oauth_token_provider": "token"}, "must be a function"),
        ({"sasl_username": "me"}, "sasl.username is not used"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "x"},
            "provider is not used with sasl.mechanism=PLAIN",
        ),
        ({"security_protocol": "SSL"}, "SASL_SSL"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ClientConfig("producer", "a:1", None, {**OAUTH, **changes})


# ---- a broker


class TokenBroker(FakeBroker):
    """Takes the tokens in `good`; says that a login lasts `lifetime_ms`."""

    def __init__(self, *good: str, lifetime_ms: int = 0) -> None:
        super().__init__()
        self.good = {f"n,,\x01auth=Bearer {token}\x01\x01".encode() for token in good}
        self.lifetime_ms = lifetime_ms
        self.seen: list[bytes] = []
        self.answers[ApiKey.SASL_HANDSHAKE] = lambda request, version: SaslHandshakeResponse(
            error_code=0, mechanisms=["OAUTHBEARER"]
        )
        self.answers[ApiKey.SASL_AUTHENTICATE] = lambda request, version: self.authenticate(request)

    def authenticate(self, request: Any) -> SaslAuthenticateResponse:
        message = bytes(request.auth_bytes)
        if message == b"\x01":
            return SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="the token is refused"
            )
        self.seen.append(message)
        if message in self.good:
            return SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
        return SaslAuthenticateResponse(auth_bytes=json.dumps({"status": "invalid_token"}).encode())


def tokens_of(tokens: Iterator[str], lasts_s: float | None = None) -> Any:
    return lambda: klamm.OAuthToken(next(tokens), None if lasts_s is None else 4e9)


async def test_a_renewal_brings_a_new_token() -> None:
    async with TokenBroker("a", "b", "c", lifetime_ms=50) as broker:
        options = {**OAUTH, "sasl_oauth_token_provider": tokens_of(iter("abcc" + "c" * 1000))}
        async with network_to(broker.bootstrap, **options) as network:
            await network.request_refresh()
            await until(lambda: len(broker.seen) >= 3, "the login was renewed twice")
            assert broker.connections == 1
    assert [message[16:17] for message in broker.seen[:3]] == [b"a", b"b", b"c"]


async def test_a_new_token_that_is_refused_is_final() -> None:
    async with TokenBroker("good") as broker:
        options = {**OAUTH, "sasl_oauth_token_provider": lambda: "bad"}
        async with network_to(broker.bootstrap, **options) as network:
            with pytest.raises(AuthenticationFailed, match=r"the token is refused\. Look at the token"):
                async with asyncio.timeout(LIMIT_S):
                    await network.topic("t", LIMIT_S)
    assert len(broker.seen) == 1


async def test_a_kept_token_that_is_refused_is_replaced() -> None:
    async with TokenBroker("a") as broker:
        options = {**OAUTH, "sasl_oauth_token_provider": tokens_of(iter("ab"), 1e6)}
        async with network_to(broker.bootstrap, reconnect_backoff_ms=1, **options) as network:
            await network.request_refresh()
            (node_id,) = network.metadata.brokers
            broker.good = {b"n,,\x01auth=Bearer b\x01\x01"}  # the first was revoked
            with pytest.raises(ClientError):
                await network.connection(node_id, "fetch")
            async with asyncio.timeout(LIMIT_S):
                await network.connection(node_id, "fetch")
    assert [message[16:17] for message in broker.seen] == [b"a", b"a", b"b"]


async def test_a_provider_that_never_succeeds_is_the_cause_of_the_time_out() -> None:
    def fails() -> str:
        raise OSError("the issuer is down")

    async with TokenBroker("a") as broker:
        options = {**OAUTH, "sasl_oauth_token_provider": fails}
        async with network_to(broker.bootstrap, **options) as network:
            with pytest.raises(TimedOut, match="the issuer is down"):
                await network.topic("t", 0.5)
