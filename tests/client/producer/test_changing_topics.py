"""Producers while leaders move, and while topics are deleted, made anew, or get more partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.client.errors import UnknownTopic
from klamm.model.errors import ErrorCode
from klamm.model.ids import ZERO_TOPIC_ID
from klamm.protocol.apis import ApiKey
from tests.client.network.fake_broker import topic_of
from tests.client.producer.cores import PartitionLog
from tests.client.producer.scripted import (
    LIMIT_S,
    TOPIC,
    ScriptedTopic,
    answer_with,
    moved_to,
    producer_of,
    send_all,
)


async def test_the_answer_names_the_new_leader() -> None:
    async with ScriptedTopic(brokers=2) as topic:
        async with producer_of(topic, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer:
            await send_all(producer, 1)
            topic.script = [moved_to(2, epoch=5)]
            async with asyncio.timeout(LIMIT_S):  # shorter than the pause
                await producer.send(TOPIC, b"moved")
        assert topic.brokers[1].count(ApiKey.PRODUCE) == 1


async def test_metadata_names_the_new_leader() -> None:
    async with ScriptedTopic(brokers=2) as topic, producer_of(topic) as producer:
        await send_all(producer, 1)

        def refuse(request: Any, version: int) -> Any:
            topic.leaders, topic.epoch = [2], 1
            return answer_with(ErrorCode.NOT_LEADER_OR_FOLLOWER)(topic, request)

        topic.brokers[0].answers[ApiKey.PRODUCE] = refuse  # each attempt: metadata may come later
        async with asyncio.timeout(LIMIT_S):
            assert (await producer.send(TOPIC, b"moved")).offset == 1
        assert topic.brokers[1].count(ApiKey.PRODUCE) == 1


async def test_a_leader_that_is_gone_for_a_while() -> None:
    async with ScriptedTopic(partitions=2) as topic, producer_of(topic) as producer:
        topic.leaders = [1, -1]
        waiting = producer.send(TOPIC, b"waits", partition=1)
        async with asyncio.timeout(LIMIT_S):
            await producer.send(TOPIC, b"goes", partition=0)
        assert not waiting.done()
        topic.leaders, topic.epoch = [1, 1], 1
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).partition == 1


async def test_a_broker_that_is_gone_for_a_while() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        await send_all(producer, 1)
        await topic.brokers[0].stop()
        delivery = producer.send(TOPIC, b"later")
        await asyncio.sleep(0.05)
        assert not delivery.done()
        await topic.brokers[0].listen()
        async with asyncio.timeout(LIMIT_S):
            assert (await delivery).offset == 1


async def test_a_topic_made_anew() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        await send_all(producer, 3)
        topic.topic_id, topic.logs = b"n" * 16, [PartitionLog()]
        async with asyncio.timeout(LIMIT_S):
            assert (await producer.send(TOPIC, b"anew")).offset == 0
        assert topic.brokers[0].requests[-1][2].topic_data[0].topic_id == b"n" * 16  # type: ignore[attr-defined]


async def test_only_a_send_creates_a_topic_and_refreshes_bring_no_deleted_one_back() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        broker = topic.brokers[0]
        exists = True

        def metadata(request: Any, version: int) -> Any:
            nonlocal exists
            asked = [each.name for each in request.topics]
            exists = exists or (request.allow_auto_topic_creation and TOPIC in asked)
            error = 0 if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found = topic_of(TOPIC, [1] if exists else [], topic_id=topic.topic_id, error=error)
            return broker.metadata(*([found] if asked else []))

        broker.answers[ApiKey.METADATA] = metadata
        await send_all(producer, 2)
        exists = False
        asked_before = broker.count(ApiKey.METADATA)
        network = producer._engine._network
        async with asyncio.timeout(LIMIT_S):
            for _ in range(3):
                await network.request_refresh()
        assert not exists, "a refresh created it"
        assert broker.count(ApiKey.METADATA) == asked_before + 3
        last = [each[2] for each in broker.requests if each[0] == ApiKey.METADATA][-1]
        assert last.topics == [], "nobody needs a topic that is gone"  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            sent = await producer.send(TOPIC, b"again")
        assert exists and sent.offset == 2


async def test_a_topic_that_is_deleted_while_records_wait_for_it_is_created_again() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        broker = topic.brokers[0]
        await send_all(producer, 1)
        created: list[list[str]] = []

        def metadata(request: Any, version: int) -> Any:
            if request.allow_auto_topic_creation:
                created.append([each.name for each in request.topics])
            if created:
                return topic.metadata(request)
            gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return broker.metadata(topic_of(TOPIC, [], topic_id=ZERO_TOPIC_ID, error=gone))

        broker.answers[ApiKey.METADATA] = metadata
        topic.topic_id, topic.logs = b"n" * 16, [PartitionLog()]  # of the topic that will be created
        async with asyncio.timeout(LIMIT_S):
            assert (await producer.send(TOPIC, b"v")).offset == 0
        assert [TOPIC] in created
        assert topic.values() == [b"v"]


async def test_new_partitions_are_found() -> None:
    async with ScriptedTopic() as topic, producer_of(topic) as producer:
        await send_all(producer, 1)
        topic.leaders, topic.logs = [1, 1], [*topic.logs, PartitionLog()]
        async with asyncio.timeout(LIMIT_S):
            assert (await producer.send(TOPIC, b"new", partition=1)).partition == 1
        with pytest.raises(UnknownTopic, match="2 partitions"):
            async with asyncio.timeout(LIMIT_S):
                await producer.send(TOPIC, b"none", partition=2)
