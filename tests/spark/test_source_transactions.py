"""Topics written in transactions, which Apache Kafka keeps: markers and aborted records are no rows."""

from __future__ import annotations

import pytest

from tests.client.consumer.test_transactions import Transactions
from tests.client.topics import make_topic
from tests.spark.driving import Stream, read, values

COMMITTED = {"kafka__isolation__level": "read_committed"}


@pytest.fixture(scope="module")
def topic(apache_kafka: str) -> str:
    """Offsets 0, 1: committed; 3, 4: aborted; 6: committed; 2, 5, 7: markers; 8: of an open transaction."""
    topic = make_topic(apache_kafka)
    transactions = Transactions(apache_kafka, topic)
    transactions.begin(b"a", b"b")
    transactions.commit()
    transactions.begin(b"no", b"never")
    transactions.abort()
    transactions.begin(b"c")
    transactions.commit()
    Transactions(apache_kafka, topic).begin(b"open")
    return topic


def test_committed_records_only(apache_kafka: str, topic: str) -> None:
    rows = read(apache_kafka, subscribe=topic, **COMMITTED)
    assert [(row["offset"], row["value"]) for row in rows] == [(0, b"a"), (1, b"b"), (6, b"c")]


def test_all_records_but_no_markers(apache_kafka: str, topic: str) -> None:
    expected = [b"a", b"b", b"no", b"never", b"c", b"open"]
    assert values(read(apache_kafka, subscribe=topic)) == expected


def test_ranges_of_nothing_but_markers_and_aborted_records(apache_kafka: str, topic: str) -> None:
    rows = read(apache_kafka, subscribe=topic, maxRecordsPerPartition=1, **COMMITTED)
    assert values(rows) == [b"a", b"b", b"c"]


def test_a_stream_ends_its_batches_at_the_first_open_transaction(apache_kafka: str) -> None:
    topic = make_topic(apache_kafka)
    stream = Stream(apache_kafka, subscribe=topic, **COMMITTED)
    transactions = Transactions(apache_kafka, topic)
    transactions.begin(b"a")
    assert stream.trigger() == []
    transactions.commit()
    found: list[bytes | None] = []
    while not found:  # the marker takes a moment
        found = values(stream.trigger())
    assert found == [b"a"]
    transactions.begin(b"b")
    transactions.abort()
    while stream.offset != {topic: {"0": 4}}:
        assert stream.trigger() == []
