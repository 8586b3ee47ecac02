"""What keeps a consumer from reading: a poll says so, in time and by name."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import klamm
from klamm import aio
from klamm.client.consumer.group.sessions import Session
from klamm.client.consumer.outages import PATIENCE_SECONDS, Absences, Outage
from klamm.client.consumer.positions import Positions
from klamm.client.network.metadata import PartitionMetadata, TopicMetadata
from klamm.client.results import TopicPartition
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.testing import Broker
from tests.client.faces import Face
from tests.client.network.fake_broker import FakeBroker
from tests.client.network.fake_broker import topic_of as fake_topic
from tests.client.reading import collect, fill, values
from tests.client.topics import make_topic
from tests.waiting import until

SOON_SECONDS = 30.0
"""Far less than default_api_timeout_ms, and enough on a busy machine."""


def topic_of(partitions: int, error: ErrorCode = ErrorCode.NONE) -> dict[str, TopicMetadata]:
    made = tuple(PartitionMetadata(index, 1, 0, (1,), (1,)) for index in range(partitions))
    return {"orders": TopicMetadata("orders", b"o" * 16, False, error, made)}


def test_that_no_broker_is_reached_is_told_after_a_while_and_again_after_as_long() -> None:
    outage = Outage(60.0)
    nobody = klamm.NoBrokerReachable("nobody listens at x:1")
    assert not outage.metadata_failed(nobody, 59.9)
    assert outage.metadata_failed(nobody, 60.0)
    told = outage.take()
    assert isinstance(told, klamm.NoBrokerReachable) and "for 60.0 s" in str(told) and "x:1" in str(told)
    assert outage.take() is None
    assert not outage.metadata_failed(nobody, 119.9), "who polls on is not told at every poll"
    assert outage.metadata_failed(nobody, 120.0)
    assert not outage.metadata_came({}, []), "it is over before anybody was told"
    assert outage.take() is None
    assert not outage.metadata_failed(nobody, 59.9)


def test_what_no_retry_heals_is_told_at_once() -> None:
    outage = Outage(60.0)
    assert outage.metadata_failed(klamm.AuthenticationFailed("who are you"), 0.1)
    assert isinstance(outage.take(), klamm.AuthenticationFailed)


def test_a_topic_that_may_not_be_read_is_told_at_once_and_one_that_is_missing_is_not() -> None:
    outage = Outage(60.0)
    assert outage.metadata_came(topic_of(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED), ["orders"])
    told = outage.take()
    assert isinstance(told, klamm.AuthorizationFailed) and "orders" in str(told)
    assert not outage.metadata_came(topic_of(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED), ["others"])
    assert not outage.metadata_came(topic_of(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ["orders"])


def test_what_is_missing_for_long_is_told_once() -> None:
    positions = Positions(threading.Lock())
    positions.assign([TopicPartition("orders", 0), TopicPartition("orders", 2)])
    absences = Absences(positions)
    assert not absences.look(topic_of(2), 100.0), "others may know more already"
    assert not absences.look(topic_of(2), 100.0 + PATIENCE_SECONDS / 2)
    assert absences.look(topic_of(2), 100.0 + PATIENCE_SECONDS)
    assert not absences.look(topic_of(2), 101.0 + PATIENCE_SECONDS), "it is to be raised already"
    positions.raise_error(TopicPartition("orders", 0))
    with pytest.raises(klamm.UnknownTopic, match=r"'orders' has no partition 2: it has 2, numbers 0 to 1"):
        positions.raise_error(TopicPartition("orders", 2))
    assert absences.look(topic_of(2), 102.0 + PATIENCE_SECONDS), "who polls again is told again"


def test_what_comes_in_time_or_has_no_topic_is_waited_for() -> None:
    positions = Positions(threading.Lock())
    positions.assign([TopicPartition("orders", 2)])
    absences = Absences(positions)
    for now, topics in enumerate(
        [{}, topic_of(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), topic_of(2), topic_of(3)]
    ):
        assert not absences.look(topics, 100.0 + now)
    assert not absences.look(topic_of(2), 110.0), "a new absence, with a time of its own"


@pytest.mark.parametrize("missing", [3, -1])
def test_a_poll_says_which_partition_is_not_there(face: Face, broker: Broker, missing: int) -> None:
    topic = make_topic(broker.bootstrap, partitions=3)
    words = rf"'{topic}' has no partition {missing}: it has 3, numbers 0 to 2"
    with face.consumer(broker.bootstrap) as consumer:
        consumer.assign([(topic, missing)])
        check(poll_on, consumer, words)
        check(lambda consumer: consumer.position((topic, missing)), consumer, words)


def test_a_place_that_was_sought_makes_no_difference(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with face.consumer(broker.bootstrap) as consumer:
        consumer.assign([(topic, 1)])
        consumer.seek((topic, 1), 5)
        check(poll_on, consumer, rf"'{topic}' has no partition 1: it has 1, number 0")


def test_the_others_are_read(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    sent = fill(face, broker.bootstrap, topic, 3)
    with face.consumer(broker.bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert values(collect(consumer, 3)) == sent
        check(poll_on, consumer, "has no partition 1")
        fill(face, broker.bootstrap, topic, 1)
        assert len(collect_through(consumer, 1)) == 1


def test_a_partition_that_comes_is_read(face: Face, broker: Broker) -> None:
    topic = make_topic(broker.bootstrap)
    with face.consumer(broker.bootstrap, start="earliest") as consumer, face.admin(broker.bootstrap) as admin:
        consumer.assign([(topic, 1)])
        check(poll_on, consumer, "has no partition 1")
        admin.create_partitions(topic, 2)
        fill(face, broker.bootstrap, topic, 2, partition=1)
        assert len(collect_through(consumer, 2)) == 2


def poll_on(consumer: Any) -> None:
    """As programs do, with short polls that may come back empty."""
    deadline = time.monotonic() + SOON_SECONDS
    while time.monotonic() < deadline:
        assert consumer.poll(timeout=0.2) == []


def check(way: Callable[[Any], object], consumer: Any, words: str) -> None:
    begun = time.monotonic()
    with pytest.raises(klamm.UnknownTopic, match=words) as raised:
        way(consumer)
    assert time.monotonic() - begun < SOON_SECONDS
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not raised.value.retriable


def collect_through(consumer: Any, count: int) -> list[Any]:
    """Poll until so many came, through what is told again and again meanwhile."""
    records: list[Any] = []
    deadline = time.monotonic() + SOON_SECONDS
    while len(records) < count and time.monotonic() < deadline:
        try:
            records += consumer.poll(timeout=0.2)
        except klamm.UnknownTopic:
            continue
    return records


# ---- a coordinator that is not there, and claims that wait


async def test_a_poll_says_that_the_coordinator_cannot_be_found() -> None:
    async with FakeBroker() as broker:
        broker.answers[ApiKey.METADATA] = lambda request, version: broker.metadata(fake_topic("t", [1]))
        broker.answers[ApiKey.FIND_COORDINATOR] = lambda request, version: FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        )
        async with (
            aio.Consumer(
                broker.bootstrap,
                group="g",
                topics="t",
                request_timeout_ms=1_000,
                default_api_timeout_ms=2_000,
            ) as consumer,
            asyncio.timeout(SOON_SECONDS),
        ):
            with pytest.raises(klamm.TimedOut, match="coordinator of group 'g'"):
                await consumer.poll()


async def test_every_worker_that_waits_in_a_session_is_told() -> None:
    async with aio.Consumer("localhost:1", group="g", topics="t") as consumer:
        engine = consumer._engine
        engine.positions.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
        session = Session(engine, consumer._waits, 1.0)
        async with session, asyncio.timeout(SOON_SECONDS):
            waiting = [asyncio.create_task(claim.poll()) for claim in session.claims]
            await until(lambda: len(session._waiters) == 2, "both wait")
            engine._metadata_failed(klamm.AuthenticationFailed("who are you"), 0.1)
            told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in told] == [klamm.AuthenticationFailed] * 2
