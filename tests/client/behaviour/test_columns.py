"""Columns instead of objects: `send_arrow` and `poll_arrow` say the same as `send` and `poll`."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

import klamm
from klamm.client.results import TopicPartition
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face
from tests.client.reading import collect, fill, read_topic, values
from tests.moments import MIDNIGHT_MS

MOMENT_MS = MIDNIGHT_MS


def collect_arrow(consumer: Any, count: int) -> Any:
    """Poll until there are `count` rows, as one table."""
    batches = []
    deadline = time.monotonic() + 20
    while sum(batch.num_rows for batch in batches) < count:
        assert time.monotonic() < deadline, f"{count} rows did not come"
        batches.append(consumer.poll_arrow(timeout=1))
    table = pa.Table.from_batches(batches)
    assert table.num_rows == count
    return table


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_poll_arrow(face: Face, bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    with face.producer(bootstrap, compression_type=codec, linger_ms=20) as producer:
        producer.send(topic, b"first", key=b"key", timestamp=MOMENT_MS, headers=[("h", b"1"), ("n", None)])
        producer.send(topic, None, timestamp=MOMENT_MS + 1)
        producer.send(topic, b"", key=b"", timestamp=MOMENT_MS + 2)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        table = collect_arrow(consumer, 3)
        assert consumer.position((topic, 0)) == 3
    assert table["key"].to_pylist() == [b"key", None, b""]
    assert table["value"].to_pylist() == [b"first", None, b""]
    assert table["topic"].to_pylist() == [topic] * 3
    assert table["partition"].to_pylist() == [0] * 3
    assert table["offset"].to_pylist() == [0, 1, 2]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [MOMENT_MS, MOMENT_MS + 1, MOMENT_MS + 2]
    assert table["timestamp_type"].to_pylist() == [0] * 3
    assert [list(row or ()) for row in table["headers"].to_pylist()] == [
        [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
        [],
        [],
    ]


def test_poll_and_poll_arrow_go_on_from_one_another(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = fill(face, bootstrap, topic, 30)
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll(timeout=10, max_records=7)
        batch = consumer.poll_arrow(timeout=10, max_records=5)
        assert 0 < batch.num_rows <= 5
        got = values(first) + batch["value"].to_pylist()
        rest = collect(consumer, 30 - len(got))
        assert got + values(rest) == sent
        assert consumer.poll_arrow(timeout=0.2).num_rows == 0


def test_poll_arrow_in_a_group(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for index in range(3):
        fill(face, bootstrap, topic, 10, index)
    options = {"group": topic, "topics": [topic], "start": "earliest", "enable_auto_commit": False}
    with face.consumer(bootstrap, **options) as consumer:
        table = collect_arrow(consumer, 30)
        consumer.commit()
        committed = consumer.committed([TopicPartition(topic, index) for index in range(3)])
        assert [one.offset for one in committed.values()] == [10, 10, 10]
    rows = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert rows == [(partition, offset) for partition in range(3) for offset in range(10)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_send_arrow(face: Face, bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic(3)
    count = 1000
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array([b"%d" % number for number in range(count)], pa.binary()),
            "body": pa.array([b"%d" % number * 20 for number in range(count)], pa.binary()),
        }
    )
    with face.producer(bootstrap, compression_type=codec) as producer:
        producer.send_arrow(batch, topic, value="body", key="id")
        producer.flush()
        by_hand = [
            producer.send(topic, b"same", key=b"%d" % number).result().partition for number in range(50)
        ]
    records = read_topic(face, bootstrap, topic, count + 50, partitions=3)
    columns = [record for record in records if record.value != b"same"]
    assert sorted(int(record.key or b"") for record in columns) == list(range(count))
    for record in columns:
        number = int(record.key or b"")
        assert record.value == b"%d" % number * 20
        if number < 50:
            assert record.partition == by_hand[number], "columns must go where single records go"
    for index in range(3):
        numbers = [int(record.key or b"") for record in columns if record.partition == index]
        assert numbers == sorted(numbers), "rows of a partition stay in order"


def test_send_arrow_with_all_columns(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    table = pa.table(
        {
            "text": ["one", None, "three"],
            "when": pa.array([MOMENT_MS, MOMENT_MS + 1, MOMENT_MS + 2], pa.timestamp("ms", "UTC")),
            "where": pa.array([1, 0, 1], pa.int32()),
        }
    )
    with face.producer(bootstrap) as producer:
        producer.send_arrow(table, topic, value="text", timestamp="when", partition="where")
        producer.flush()
    records = sorted(read_topic(face, bootstrap, topic, 3, partitions=2), key=lambda one: one.timestamp)
    assert [(one.partition, one.value, one.timestamp - MOMENT_MS) for one in records] == [
        (1, b"one", 0),
        (0, None, 1),
        (1, b"three", 2),
    ]


def test_send_arrow_says_what_it_cannot_take(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    batch = pa.RecordBatch.from_pydict({"number": [1, 2, 3]})
    with face.producer(bootstrap) as producer:
        with pytest.raises(klamm.ClientError, match="missing"):
            producer.send_arrow(batch, topic, value="missing")
        with pytest.raises(klamm.ClientError, match="number"):
            producer.send_arrow(batch, topic, value="number")
