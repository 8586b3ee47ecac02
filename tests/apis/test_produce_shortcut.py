"""The short way of a repeated produce must be the long way, only shorter."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.apis import produce_shortcut
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from klamm.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord
from klamm.testing import Broker
from klamm.testing.wire import WireConnection
from tests.faulty_disk import replace_below

NOW_MS = 1_700_000_000_000
VERSIONS = (3, 5, 7, 8, 9, 11, 12, 13)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


class Topic:
    """One new topic, its id, and produce requests to it."""

    def __init__(self, broker: Broker, name: str, **config: str) -> None:
        self.name = name
        with WireConnection(broker.bootstrap) as connection:
            configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
            connection.call(
                CreateTopicsRequest(
                    topics=[
                        CreatableTopic(name=name, num_partitions=2, replication_factor=1, configs=configs)
                    ],
                    timeout_ms=10_000,
                )
            )
            metadata = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        self.topic_id = metadata.topics[0].topic_id

    def request(self, version: int, batch: bytes, partition: int = 0, acks: int = 1) -> ProduceRequest:
        data = [PartitionProduceData(index=partition, records=batch)]
        topic = (
            TopicProduceData(topic_id=self.topic_id, partition_data=data)
            if version >= 13
            else TopicProduceData(name=self.name, partition_data=data)
        )
        return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def batch_of(
    count: int = 1, value_bytes: int = 10, *, codec: int = 0, producer_id: int = -1, sequence: int = -1
) -> bytes:
    records = [StoredRecord(index, NOW_MS + index, b"key", b"v" * value_bytes) for index in range(count)]
    epoch = -1 if producer_id < 0 else 0
    return bytes(
        build_batch(
            records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
    )


def outcome(response: Any) -> tuple[int, int, int, int]:
    partition = response.responses[0].partition_responses[0]
    return (
        partition.error_code,
        partition.base_offset,
        partition.log_append_time_ms,
        partition.log_start_offset,
    )


def shortcuts(broker: Broker) -> list[Any]:
    async def look() -> list[Any]:
        assert broker.node is not None
        connections = broker.node.server._connections
        return [each.shortcut for each in connections if each.shortcut is not None and len(each.shortcut)]

    return broker.run(look())


def random_batch(chance: random.Random, sequences: dict[int, int]) -> bytes:
    kind = chance.random()
    count = chance.randint(1, 5)
    size = chance.choice((0, 1, 60, 200, 20_000, 100_000))
    if kind < 0.5:
        return batch_of(count, size, codec=chance.randint(0, 4))
    if kind < 0.75:
        producer_id = chance.randint(1, 2)
        sequence = sequences.get(producer_id, 0)
        if chance.random() < 0.3:  # again, or out of order
            return batch_of(count, size, producer_id=producer_id, sequence=max(0, sequence - count))
        sequences[producer_id] = sequence + count
        return batch_of(count, size, producer_id=producer_id, sequence=sequence)
    damaged = bytearray(batch_of(count, size))
    if kind < 0.9:
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    else:
        del damaged[chance.randrange(1, len(damaged)) :]
    return bytes(damaged)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_answers_as_the_long_way_does(broker: Broker, version: int, acks: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    short = Topic(broker, f"short-{version}-{acks}")
    long = Topic(broker, f"longer-{version}-{acks}")
    sequences: dict[int, int] = {}
    with WireConnection(broker.bootstrap) as repeating:
        for number in range(60):
            batch = random_batch(chance, sequences)
            partition = 1 if chance.random() < 0.1 else 0
            took = outcome(repeating.call(short.request(version, batch, partition, acks), version))
            # A new connection every time has no shortcut.
            with WireConnection(broker.bootstrap) as fresh:
                expected = outcome(fresh.call(long.request(version, batch, partition, acks), version))
            assert took == expected, f"request {number} of seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_request_gets_a_shortcut(broker: Broker, version: int) -> None:
    topic = Topic(broker, f"shortcut-{version}")
    with WireConnection(broker.bootstrap) as connection:
        for offset in range(5):
            answered = outcome(connection.call(topic.request(version, batch_of()), version))
            assert answered[:2] == (ErrorCode.NONE, offset)
        assert bool(shortcuts(broker)) == (version >= 5)


def test_each_partition_gets_its_own(broker: Broker) -> None:
    topic, longer = Topic(broker, "several"), Topic(broker, "several-with-a-longer-name")
    with WireConnection(broker.bootstrap) as connection:
        for offset in range(6):
            for each in (topic, longer):
                for partition in (0, 1):
                    answered = outcome(connection.call(each.request(9, batch_of(), partition), 9))
                    assert answered[:2] == (ErrorCode.NONE, offset)
        (found,) = shortcuts(broker)
        assert len(found) == 4


def test_more_partitions_than_shortcuts_take_the_long_way(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_shortcut, "MAX_SHORTCUTS", 2)
    topics = [Topic(broker, f"many-{number}") for number in range(3)]
    with WireConnection(broker.bootstrap) as connection:
        for offset in range(6):
            for topic in topics:
                answered = outcome(connection.call(topic.request(9, batch_of()), 9))
                assert answered[:2] == (ErrorCode.NONE, offset)
        assert not shortcuts(broker)
        for offset in range(6, 10):  # the producer turns to one of them
            assert outcome(connection.call(topics[0].request(9, batch_of()), 9))[:2] == (0, offset)
        (found,) = shortcuts(broker)
        assert len(found) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup.policy": "compact"},
        {"compression.type": "zstd"},
        {"message.timestamp.type": "LogAppendTime"},
        {"flush.messages": "1"},
    ],
)
def test_topics_with_more_to_do_get_no_shortcut(broker: Broker, config: dict[str, str]) -> None:
    topic = Topic(broker, "slow-" + next(iter(config)), **config)
    with WireConnection(broker.bootstrap) as connection:
        for offset in range(4):
            assert outcome(connection.call(topic.request(9, batch_of()), 9))[:2] == (0, offset)
        assert not shortcuts(broker)


def test_a_changed_setting_counts_at_once(broker: Broker) -> None:
    topic = Topic(broker, "changing")
    with WireConnection(broker.bootstrap) as connection, WireConnection(broker.bootstrap) as admin:
        for _ in range(3):
            connection.call(topic.request(9, batch_of()), 9)
        assert shortcuts(broker)
        change = AlterableConfig(name="max.message.bytes", config_operation=0, value="200")
        resource = AlterConfigsResource(resource_type=2, resource_name="changing", configs=[change])
        admin.call(IncrementalAlterConfigsRequest(resources=[resource]))
        refused = outcome(connection.call(topic.request(9, batch_of(1, 500)), 9))
        assert refused[0] == ErrorCode.MESSAGE_TOO_LARGE


def test_a_full_disk_is_told_as_such(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(broker, "full")
    with WireConnection(broker.bootstrap) as connection:
        for _ in range(3):
            connection.call(topic.request(9, batch_of()), 9)
        assert shortcuts(broker)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as disk:
            replace_below(broker.data_dir, disk, "pwrite", full)
            assert (
                outcome(connection.call(topic.request(9, batch_of()), 9))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            )
        assert outcome(connection.call(topic.request(9, batch_of()), 9))[:2] == (ErrorCode.NONE, 3)
