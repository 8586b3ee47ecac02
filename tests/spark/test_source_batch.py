"""Batches: what the options say is read, and every kind of record arrives as it was written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

import klamm
from klamm.records.compression import Codec
from klamm.testing import Broker
from pyspark_klamm.errors import DataLoss, OptionError, TopicMissing
from tests.client.topics import make_topic, unique
from tests.spark.driving import read, read_batches, source, values
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def numbers(klamm_bootstrap: str) -> str:
    """A topic with two partitions: one has the values 0 to 9, at 1,000 ms and so on, the other 10 to 14."""
    topic = make_topic(klamm_bootstrap, partitions=2)
    with klamm.Producer(klamm_bootstrap) as producer:
        for number in range(15):
            at = 1000 * (number % 10 + 1)
            producer.send(topic, b"%d" % number, partition=number // 10, timestamp=at)
        producer.flush()
    return topic


def numbers_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def test_all_of_a_topic(klamm_bootstrap: str, numbers: str) -> None:
    rows = read(klamm_bootstrap, subscribe=numbers)
    assert numbers_of(rows) == list(range(15))
    assert rows[3] == {
        "key": None,
        "value": b"3",
        "topic": numbers,
        "partition": 0,
        "offset": 3,
        "timestamp": datetime.fromtimestamp(4, UTC),
        "timestampType": 0,
    }


def offsets(topic: str, first: int, second: int) -> str:
    return json.dumps({topic: {"0": first, "1": second}})


def test_between_offsets(klamm_bootstrap: str, numbers: str) -> None:
    rows = read(
        klamm_bootstrap,
        subscribe=numbers,
        startingOffsets=offsets(numbers, 7, -2),
        endingOffsets=offsets(numbers, -1, 2),
    )
    assert numbers_of(rows) == [7, 8, 9, 10, 11]


def test_between_times(klamm_bootstrap: str, numbers: str) -> None:
    rows = read(klamm_bootstrap, subscribe=numbers, startingTimestamp=2000, endingTimestamp=4000)
    assert numbers_of(rows) == [1, 2, 11, 12]
    rows = read(
        klamm_bootstrap,
        subscribe=numbers,
        startingOffsetsByTimestamp=offsets(numbers, 9500, 4001),
        endingOffsetsByTimestamp=offsets(numbers, 99_000, 99_000),
    )
    assert numbers_of(rows) == [9, 14]


def test_a_time_after_all_records(klamm_bootstrap: str, numbers: str) -> None:
    late = {"subscribe": numbers, "startingTimestamp": 6000}  # partition 1 ends at 5000
    with pytest.raises(OptionError, match=f"no record at or after the time in {numbers}-1"):
        read(klamm_bootstrap, **late)
    rows = read(klamm_bootstrap, **late, startingOffsetsByTimestampStrategy="latest")
    assert numbers_of(rows) == [5, 6, 7, 8, 9]


def test_by_assignment_and_by_pattern(klamm_bootstrap: str, numbers: str) -> None:
    assert numbers_of(read(klamm_bootstrap, assign=json.dumps({numbers: [1]}))) == [10, 11, 12, 13, 14]
    assert numbers_of(read(klamm_bootstrap, subscribePattern=f"{numbers[:-1]}.")) == list(range(15))
    assert read(klamm_bootstrap, subscribePattern=numbers[:-1]) == []
    assert read(klamm_bootstrap, subscribePattern="__.*") == [], "topics of the brokers' own are no data"


def test_several_topics(klamm_bootstrap: str, numbers: str) -> None:
    other = make_topic(klamm_bootstrap)
    with klamm.Producer(klamm_bootstrap) as producer:
        producer.send(other, b"77").result()
    rows = read(klamm_bootstrap, subscribe=f"{numbers}, {other}")
    assert numbers_of(rows) == [*range(15), 77]
    assert {row["topic"] for row in rows} == {numbers, other}


def test_what_is_missing_is_named(klamm_bootstrap: str, numbers: str) -> None:
    missing = unique("missing")
    with pytest.raises(TopicMissing, match=f"{missing} does not exist on {klamm_bootstrap}"):
        read(klamm_bootstrap, subscribe=f"{numbers},{missing}")
    with pytest.raises(TopicMissing, match=f"{numbers}-5"):
        read(klamm_bootstrap, assign=json.dumps({numbers: [0, 5]}))
    with klamm.Admin(klamm_bootstrap) as admin:
        assert missing not in admin.list_topics(), "reading creates nothing"


def test_offsets_for_partitions_that_are_not_read_are_refused(klamm_bootstrap: str, numbers: str) -> None:
    with pytest.raises(OptionError, match=f"lacks {numbers}-1"):
        read(klamm_bootstrap, subscribe=numbers, startingOffsets=json.dumps({numbers: {"0": 1}}))


def test_a_schema_of_ones_own_is_refused(klamm_bootstrap: str, numbers: str) -> None:
    made = source(klamm_bootstrap, subscribe=numbers)
    with_headers = source(klamm_bootstrap, subscribe=numbers, includeHeaders=True).schema()
    for reader in (made.reader, made.streamReader):
        with pytest.raises(OptionError, match="columns of a topic are fixed"):
            reader(with_headers)


# ---- parts


def test_more_tasks_than_partitions(klamm_bootstrap: str, numbers: str) -> None:
    made = source(klamm_bootstrap, subscribe=numbers, minPartitions=6)
    partitions = made.reader(made.schema()).partitions()
    assert len(partitions) == 6
    assert numbers_of(read(klamm_bootstrap, subscribe=numbers, minPartitions=6)) == list(range(15))


def test_small_partitions_share_a_task(klamm_bootstrap: str, numbers: str) -> None:
    made = source(klamm_bootstrap, subscribe=numbers)
    assert len(made.reader(made.schema()).partitions()) == 1
    assert numbers_of(read(klamm_bootstrap, subscribe=numbers)) == list(range(15))


def test_few_records_in_each_task(klamm_bootstrap: str, numbers: str) -> None:
    made = source(klamm_bootstrap, subscribe=numbers, maxRecordsPerPartition=4)
    tasks = [each.ranges for each in made.reader(made.schema()).partitions()]
    assert [[each.size for each in task] for task in tasks] == [[3], [3], [4], [2], [3]]
    assert numbers_of(read(klamm_bootstrap, subscribe=numbers, maxRecordsPerPartition=4)) == list(range(15))


def test_an_empty_topic_has_no_rows(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap, partitions=3)
    assert read_batches(klamm_bootstrap, subscribe=topic) == []


# ---- kinds of records


def test_keys_values_headers_and_tombstones(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    with klamm.Producer(klamm_bootstrap) as producer:
        producer.send(topic, b"", key=b"k", headers=[("a", b"1"), ("a", None), ("ü", b"")])
        producer.send(topic, None, key=b"")
        producer.send(topic, b"v", timestamp=1234)
        producer.flush()
    rows = read(klamm_bootstrap, subscribe=topic, includeHeaders=True)
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b""), (b"", None), (None, b"v")]
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "ü", "value": b""}]
    assert [row["headers"] for row in rows] == [pairs, None, None]
    assert rows[2]["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 234000, UTC)


def test_the_brokers_time(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap, configs={"message.timestamp.type": "LogAppendTime"})
    before = datetime.now(UTC)
    with klamm.Producer(klamm_bootstrap) as producer:
        producer.send(topic, b"v", timestamp=5).result()
    (row,) = read(klamm_bootstrap, subscribe=topic)
    assert row["timestampType"] == 1
    assert abs((row["timestamp"] - before).total_seconds()) < 60


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_codecs(klamm_bootstrap: str, codec: str) -> None:
    topic = make_topic(klamm_bootstrap)
    sent = [b"value %d " % number * 20 for number in range(3000)]
    with klamm.Producer(klamm_bootstrap, compression_type=codec, linger_ms=20) as producer:
        for value in sent:
            producer.send(topic, value)
        producer.flush()
    assert values(read(klamm_bootstrap, subscribe=topic)) == sent
    rows = read(klamm_bootstrap, subscribe=topic, minPartitions=7)
    assert values(rows) == sent, "ranges that begin and end inside of batches"


def test_batches_are_of_a_size_that_spark_takes_well(klamm_bootstrap: str) -> None:
    topic = make_topic(klamm_bootstrap)
    with klamm.Producer(klamm_bootstrap, linger_ms=20) as producer:
        for _ in range(40_000):
            producer.send(topic, b"x" * 100)
        producer.flush()
    found = read_batches(klamm_bootstrap, subscribe=topic)
    assert sum(each.num_rows for each in found) == 40_000
    assert max(each.num_rows for each in found) <= 10_000
    assert len(found) <= 15


# ---- what is gone


def trimmed(bootstrap: str, before: int) -> str:
    """A topic with ten records, of which those before an offset are deleted."""
    topic = make_topic(bootstrap)
    with klamm.Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
        producer.flush()
    with klamm.Admin(bootstrap) as admin:
        admin.delete_records({(topic, 0): before})
    return topic


@pytest.mark.parametrize(("name", "offset"), [("startingOffsets", 2), ("endingOffsets", 12)])
def test_offsets_outside_of_the_log(klamm_bootstrap: str, name: str, offset: int) -> None:
    topic = trimmed(klamm_bootstrap, 4)
    given = {"subscribe": topic, name: json.dumps({topic: {"0": offset}})}
    with pytest.raises(DataLoss, match=f"{name}: offset {offset} of {topic}-0 does not exist.* 4 to 9"):
        read(klamm_bootstrap, **given)
    assert numbers_of(read(klamm_bootstrap, **given, failOnDataLoss=False)) == [4, 5, 6, 7, 8, 9]


def test_records_deleted_between_planning_and_reading(klamm_bootstrap: str) -> None:
    topic = trimmed(klamm_bootstrap, 0)
    strict, lenient = (
        source(klamm_bootstrap, subscribe=topic, failOnDataLoss=word) for word in (True, False)
    )
    readers = [each.reader(each.schema()) for each in (strict, lenient)]
    planned = [reader.partitions() for reader in readers]
    with klamm.Admin(klamm_bootstrap) as admin:
        admin.delete_records({(topic, 0): 6})
    with pytest.raises(DataLoss, match=r"from offset 0 to 5 .* has the offsets from 6 to 9"):
        list(readers[0].read(planned[0][0]))
    rows = [row for each in readers[1].read(planned[1][0]) for row in each.to_pylist()]
    assert numbers_of(rows) == [6, 7, 8, 9]


def test_a_topic_deleted_between_planning_and_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_klamm.fetching.GONE_SECONDS", 0.2)
    with Broker({"auto.create.topics.enable": False}) as broker:
        topic = trimmed(broker.bootstrap, 0)
        made = source(broker.bootstrap, subscribe=topic)
        reader = made.reader(made.schema())
        (partition,) = reader.partitions()
        with klamm.Admin(broker.bootstrap) as admin:
            admin.delete_topic(topic)
        with pytest.raises(DataLoss, match="the topic or the partition no longer exists"):
            list(reader.read(partition))


def test_compaction_leaves_gaps() -> None:
    with Broker({"log.cleaner.backoff.ms": 100}) as broker:
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": 1024 * 1024,
            "min.cleanable.dirty.ratio": 0.01,
        }
        topic = make_topic(broker.bootstrap, configs=settings)
        with klamm.Producer(broker.bootstrap) as producer:
            for number in range(60):
                producer.send(topic, b"%d" % number * 50_000, key=b"%d" % (number % 3)).result()

        def offsets_found(**options: object) -> list[int]:
            return [row["offset"] for row in read(broker.bootstrap, subscribe=topic, **options)]

        wait_until(lambda: len(offsets_found()) < 30, "the log is compacted")

        def compared() -> tuple[list[int], list[int]] | None:
            kept, split = offsets_found(), offsets_found(minPartitions=60)
            return (kept, split) if offsets_found() == kept else None  # or it was compacted meanwhile

        kept, split = wait_until(compared, "compaction rests")
        assert 5 < kept[0] < kept[-1] == 59
        assert split == kept, "ranges that are nothing but gaps, or end in one"
