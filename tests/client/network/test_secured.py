"""TLS and logins against Apache Kafka: every way in, and every way to get it wrong."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any

import pytest

from klamm.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionFailed,
    NotKafka,
    TimedOut,
    TlsFailed,
)
from klamm.client.network.network import Network
from klamm.config.client_config import ClientConfig
from klamm.config.rows import ConfigError
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k03_metadata import MetadataRequest
from klamm.security.oauth import OAuthToken
from klamm.testing import Broker
from tests.client.network.clean import network_to
from tests.client.secured import BRIEF_LOGIN_MS, SCRAM_USER, WAYS, SecuredKafka, unsigned_token
from tests.waiting import until

AT_ONCE_SECONDS = 30.0
"""Well below default.api.timeout.ms: nobody waited for a time-out."""


def to(kafka: SecuredKafka, way: str, **changes: object) -> Any:
    options: dict[str, object] = {**kafka.options(way), **changes}
    return network_to(str(options.pop("bootstrap")), **options)


async def failure_of(network: Network) -> ClientError:
    """What a user hears who asks for a topic, and that it does not take long."""
    started = time.monotonic()
    with pytest.raises(ClientError) as caught:
        await network.topic("t", 60.0)
    assert time.monotonic() - started < AT_ONCE_SECONDS
    assert "secret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_in(secured_kafka: SecuredKafka, way: str) -> None:
    async with to(secured_kafka, way, kind="producer") as network:
        topic = await network.topic("reached-" + way.replace(" ", "-"), 30.0)
        leader = topic.partitions[0].leader
        assert network.metadata.brokers[leader].host == "localhost"
        for lane in ("general", "fetch", "group"):
            await network.call(leader, MetadataRequest(topics=[]), lane=lane)


async def test_a_context_of_the_user_s_own(secured_kafka: SecuredKafka) -> None:
    context = ssl.create_default_context(cafile=secured_kafka.certificates.authority)
    network = Network(ClientConfig("admin", secured_kafka.address("TLS")), ssl_context=context)
    try:
        await network.request_refresh()
        assert network.metadata.brokers
    finally:
        await network.close()


def test_a_context_that_contradicts_the_protocol() -> None:
    config = ClientConfig("admin", "a:1", None, {"security_protocol": "PLAINTEXT"})
    with pytest.raises(ConfigError, match="ssl_context"):
        Network(config, ssl_context=ssl.create_default_context())


# ---- logins


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512 in TLS"])
@pytest.mark.parametrize("changes", [{"sasl_password": "wrong"}, {"sasl_username": "nobody"}], ids=str)
async def test_a_wrong_name_or_password(
    secured_kafka: SecuredKafka, way: str, changes: dict[str, str]
) -> None:
    async with to(secured_kafka, way, **changes) as network:
        failure = await failure_of(network)
        assert isinstance(failure, AuthenticationFailed)
        assert failure.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not failure.retriable
        assert "sasl_password" in failure.advice
        with pytest.raises(AuthenticationFailed):
            await network.coordinator("g", 60.0)


async def test_a_mechanism_that_the_broker_does_not_take(secured_kafka: SecuredKafka) -> None:
    only_plain = secured_kafka.address("ONLYPLAIN")
    async with to(secured_kafka, "SCRAM-SHA-256", bootstrap=only_plain) as network:
        failure = await failure_of(network)
        assert isinstance(failure, AuthenticationFailed)
        assert "does not take SCRAM-SHA-256; it offers: PLAIN." in str(failure)
        assert failure.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM


async def test_a_login_where_none_is_asked_for(secured_kafka: SecuredKafka) -> None:
    async with to(secured_kafka, "PLAIN", bootstrap=secured_kafka.kafka.bootstrap) as network:
        failure = await failure_of(network)
        assert isinstance(failure, AuthenticationFailed)
        assert "security_protocol" in failure.advice


async def test_a_login_at_a_broker_that_knows_none() -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": "b"}
    with Broker() as broker:
        async with network_to(broker.bootstrap, security_protocol="SASL_PLAINTEXT", **login) as network:
            failure = await failure_of(network)
            assert isinstance(failure, AuthenticationFailed)
            assert "does not offer a login" in str(failure)


async def test_no_login_where_one_is_asked_for(secured_kafka: SecuredKafka) -> None:
    """The broker hangs up at the first request; it might as well be stopping, so it is tried again."""
    async with network_to(secured_kafka.address("LOGIN")) as network:
        with pytest.raises(TimedOut, match="security_protocol"):
            await network.topic("t", 1.0)
        with pytest.raises(ConnectionFailed, match="security_protocol"):
            await network.call(-1, MetadataRequest(topics=[]))


async def test_a_name_that_sasl_does_not_allow() -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "a\0", "sasl_password": "b"}
    config = ClientConfig("admin", "a:1", None, {"security_protocol": "SASL_PLAINTEXT", **login})
    with pytest.raises(ConfigError, match="NUL"):
        Network(config)


@pytest.mark.usefixtures("early_renewals")
async def test_logins_are_renewed_while_requests_go_on(secured_kafka: SecuredKafka) -> None:
    """Kafka closes a connection whose login has run out at its next request."""
    async with to(secured_kafka, "brief logins") as network:
        await network.request_refresh()
        (node_id,) = network.metadata.brokers
        connection = await network.connection(node_id)
        ends = time.monotonic() + 1.3 * BRIEF_LOGIN_MS / 1000
        while time.monotonic() < ends:
            await asyncio.gather(*(network.call(node_id, MetadataRequest(topics=[])) for _ in range(20)))
            await asyncio.sleep(0.01)
        assert not connection.closed
        assert await network.connection(node_id) is connection
        assert network.counters.requests_failed == 0


@pytest.mark.long
@pytest.mark.usefixtures("early_renewals")
async def test_tokens_are_renewed_while_requests_go_on(secured_kafka: SecuredKafka) -> None:
    """Each token is asked for anew, because it says that it is soon over."""
    asked = 0

    async def provider() -> OAuthToken:
        nonlocal asked
        asked += 1
        return OAuthToken(unsigned_token().token)

    async with to(secured_kafka, "OAUTHBEARER", sasl_oauth_token_provider=provider) as network:
        await network.request_refresh()
        (node_id,) = network.metadata.brokers
        connection = await network.connection(node_id)
        async with asyncio.timeout(10 * BRIEF_LOGIN_MS / 1000):
            while asked < 3:
                await network.call(node_id, MetadataRequest(topics=[]))
                await asyncio.sleep(0.01)
        await network.call(node_id, MetadataRequest(topics=[]))
        assert await network.connection(node_id) is connection
        assert network.counters.requests_failed == 0


async def test_a_token_that_is_refused(secured_kafka: SecuredKafka) -> None:
    expired = unsigned_token(-600.0)
    changes = {"sasl_oauth_token_provider": lambda: expired.token}
    async with to(secured_kafka, "OAUTHBEARER", **changes) as network:
        error = await failure_of(network)
    assert isinstance(error, AuthenticationFailed) and error.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert expired.token not in str(error) and "Look at the token" in error.advice


# ---- TLS


async def test_an_authority_that_is_not_trusted(secured_kafka: SecuredKafka) -> None:
    stranger = str(secured_kafka.certificates.stranger)
    for changes in ({"ssl_ca_location": stranger}, {"ssl_ca_location": None}):
        async with to(secured_kafka, "TLS", **changes) as network:
            failure = await failure_of(network)
            assert isinstance(failure, TlsFailed)
            assert "ssl_ca_location" in failure.advice


async def test_a_certificate_for_another_host(secured_kafka: SecuredKafka) -> None:
    elsewhere = secured_kafka.address("TLS", host="127.0.0.1")
    async with to(secured_kafka, "TLS", bootstrap=elsewhere) as network:
        failure = await failure_of(network)
        assert isinstance(failure, TlsFailed)
        assert "another host" in str(failure)
        assert "ssl_endpoint_identification_algorithm" in failure.advice
    unchecked = {"bootstrap": elsewhere, "ssl_endpoint_identification_algorithm": "none"}
    async with to(secured_kafka, "TLS", **unchecked) as network:
        await network.request_refresh()


async def test_no_certificate_where_one_is_asked_for(secured_kafka: SecuredKafka) -> None:
    """With TLS 1.3 a server refuses only after the handshake."""
    changes = {"ssl_certificate_location": None, "ssl_key_location": None}
    async with to(secured_kafka, "TLS both ways", **changes) as network:
        failure = await failure_of(network)
        assert isinstance(failure, TlsFailed), repr(failure)
        assert "ssl_certificate_location" in failure.advice


async def test_tls_where_there_is_none(secured_kafka: SecuredKafka) -> None:
    async with to(secured_kafka, "TLS", bootstrap=secured_kafka.kafka.bootstrap) as network:
        failure = await failure_of(network)
        assert isinstance(failure, TlsFailed)
        assert "PLAINTEXT" in failure.advice
    with Broker() as broker:
        async with to(secured_kafka, "TLS", bootstrap=broker.bootstrap) as network:
            assert isinstance(await failure_of(network), TlsFailed)


async def test_no_tls_where_it_is_asked_for(secured_kafka: SecuredKafka) -> None:
    async with network_to(secured_kafka.address("TLS")) as network:
        with pytest.raises(NotKafka, match="TLS"):
            await network.call(-1, MetadataRequest(topics=[]))


async def test_a_key_with_a_password(secured_kafka: SecuredKafka) -> None:
    key = str(secured_kafka.certificates.encrypted_client_key("open-sesame"))
    async with to(
        secured_kafka, "TLS both ways", ssl_key_location=key, ssl_key_password="open-sesame"
    ) as network:
        await network.request_refresh()
    with pytest.raises(ConfigError, match=r"ssl\.key\.password"):
        async with to(secured_kafka, "TLS both ways", ssl_key_location=key):
            pass
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location"):
        async with to(secured_kafka, "TLS both ways", ssl_key_location=key, ssl_key_password="wrong"):
            pass


async def test_large_answers_inside_tls(secured_kafka: SecuredKafka) -> None:
    """Many topics make a Metadata answer larger than what one read takes."""
    async with to(secured_kafka, "SCRAM-SHA-512 in TLS") as network:
        names = [f"{SCRAM_USER}-has-no-such-topic-{number}-{'x' * 100}" for number in range(2000)]
        network.want_topics(names)
        await network.request_refresh()
        assert len(network.metadata.topics) == 2000


async def test_connections_end_cleanly_while_requests_are_under_way(secured_kafka: SecuredKafka) -> None:
    async with to(secured_kafka, "PLAIN in TLS") as network:
        await network.request_refresh()
        (node_id,) = network.metadata.brokers
        calls = [
            asyncio.ensure_future(
                network.call(node_id, MetadataRequest(topics=[]), lane=f"lane-{number % 4}")
            )
            for number in range(40)
        ]
        await until(lambda: network.counters.requests > 10, "some are under way")
        await network.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(not isinstance(each, Exception) or isinstance(each, ClientError) for each in ended)
