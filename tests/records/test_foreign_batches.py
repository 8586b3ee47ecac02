"""Batches of other clients through a broker, read as objects and as columns; ours, read by another client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pyarrow as pa
import pytest
from tests.records.test_arrow_encoding import assembled
from tests.records.test_columns import rows_of_columns, rows_of_objects

from klamm.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from klamm.records.arrow import to_record_batch
from klamm.records.arrow_encoding import encode_columns
from klamm.records.compression import CODEC_NAMES
from klamm.records.fetched import FetchedRecords, walk_batches
from klamm.testing import Broker
from klamm.testing.wire import WireConnection

TOPIC = "written-by-others"
COUNT = 700
TIME_MS = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_SECONDS = 20.0

Sent = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def sent_rows() -> list[Sent]:
    """Rows with and without key, value and headers, small and large, some of them later than the next."""
    return [
        (
            None if row % 3 == 0 else b"key-%d" % row,
            None if row % 6 == 1 else b"value-%d " % row * (row % 40),
            TIME_MS + row * 10 - (500 if row % 10 == 5 else 0),
            [("trace", b"%d" % row), ("größe", b"")][: row % 3],
        )
        for row in range(COUNT)
    ]


def write_with_librdkafka(bootstrap: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.num.messages": 150,
        }
    )
    for key, value, timestamp, headers in sent_rows():
        producer.produce(TOPIC, value, key, partition=0, timestamp=timestamp, headers=headers)
    assert producer.flush(PATIENCE_SECONDS) == 0


async def _write_with_aiokafka(bootstrap: str, codec: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        max_batch_size=4096,
        linger_ms=20,
    )
    async with producer:
        for key, value, timestamp, headers in sent_rows():
            await producer.send(TOPIC, value, key, partition=0, timestamp_ms=timestamp, headers=headers)


def write_with_aiokafka(bootstrap: str, codec: str) -> None:
    asyncio.run(_write_with_aiokafka(bootstrap, codec))


WRITERS: dict[str, Callable[[str, str], None]] = {
    "librdkafka": write_with_librdkafka,
    "aiokafka": write_with_aiokafka,
}


def fetch(bootstrap: str, offset: int) -> FetchedRecords:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 24)
    request = FetchRequest(
        max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
    )
    with WireConnection(bootstrap) as wire:
        answer = wire.call(request, 12).responses[0].partitions[0]
    assert answer.error_code == 0
    return FetchedRecords(TOPIC, 0, memoryview(answer.records or b""), offset)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_batches_of_others(writer: str, codec: str) -> None:
    with Broker() as broker:
        WRITERS[writer](broker.bootstrap, codec)
        fetched = fetch(broker.bootstrap, 123)
    codecs = {header.compression for header, _, _ in walk_batches(fetched)}
    assert codecs == {CODEC_NAMES[codec]}, "the client did not write what the test is about"
    rows = rows_of_objects([fetched])
    expected = [
        (key, value, TOPIC, 0, offset, timestamp, 0, headers)
        for offset, (key, value, timestamp, headers) in enumerate(sent_rows())
    ]
    assert rows == expected[123:]
    batch, next_offsets = to_record_batch([fetched])
    assert rows_of_columns(batch) == rows
    assert next_offsets == {(TOPIC, 0): COUNT}


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_was_columns(codec: str) -> None:
    rows = sent_rows()
    table = pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "time": pa.array([row[2] for row in rows], pa.timestamp("ms")),
            "headers": pa.array([row[3] for row in rows], pa.map_(pa.string(), pa.binary())),
        }
    )
    encoded = encode_columns(
        table,
        key="key",
        value="value",
        timestamp="time",
        headers="headers",
        partitions_count=1,
        batch_size=8192,
        now_ms=0,
    )
    assert len(encoded) > 5
    with Broker() as broker, WireConnection(broker.bootstrap) as wire:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        for one in encoded:
            batch = assembled(one, CODEC_NAMES[codec])
            data = [
                TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
            ]
            answer = wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        assert read_with_librdkafka(broker.bootstrap) == rows


def read_with_librdkafka(bootstrap: str) -> list[Sent]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[Sent] = []
    while len(found) < COUNT:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"only {len(found)} records came"
        assert message.error() is None
        found.append((message.key(), message.value(), message.timestamp()[1], message.headers() or []))
    consumer.close()
    return found
