"""What becomes of a record that is sent: where it goes, what is said about it, and how it comes back."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from klamm.client.results import CREATE_TIME, LOG_APPEND_TIME, SentRecord
from tests.client.behaviour.conftest import NewTopic
from tests.client.faces import Face
from tests.client.reading import read_topic, values
from tests.waiting import wait_until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_record_comes_back_as_it_was_sent(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    before = now_ms()
    with face.producer(bootstrap) as producer:
        first = producer.send(topic, b"value", key=b"key").result()
        second = producer.send(topic, b"", key=b"").result()
    assert isinstance(first, SentRecord)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)
    assert before <= first.timestamp <= now_ms()
    assert second.offset == 1
    one, other = read_topic(face, bootstrap, topic, 2)
    assert (one.topic, one.partition, one.offset, one.key, one.value) == (topic, 0, 0, b"key", b"value")
    assert (one.timestamp, one.timestamp_type) == (first.timestamp, CREATE_TIME)
    assert (other.key, other.value, tuple(other.headers)) == (b"", b"", ())


def test_what_is_not_there_stays_away(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """A value of None is a tombstone, and not the same as an empty one."""
    topic = new_topic(1, {"cleanup.policy": "compact"})
    with face.producer(bootstrap) as producer:
        producer.send(topic, None, key=b"key").result()
        producer.send(topic, b"", key=b"key").result()
    assert values(read_topic(face, bootstrap, topic, 2)) == [None, b""]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_anything_like_bytes(face: Face, bootstrap: str, new_topic: NewTopic, kind: Any) -> None:
    topic = new_topic()
    with face.producer(bootstrap) as producer:
        producer.send(topic, kind(b"value"), key=kind(b"key")).result()
    (record,) = read_topic(face, bootstrap, topic, 1)
    assert (record.key, record.value) == (b"key", b"value")


def test_a_buffer_may_be_used_again_after_send(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    buffer = bytearray(b"first")
    with face.producer(bootstrap, linger_ms=200) as producer:
        delivery = producer.send(topic, buffer)
        buffer[:] = b"other"
        delivery.result()
    assert values(read_topic(face, bootstrap, topic, 1)) == [b"first"]


def test_headers(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    pairs = [("trace", b"1"), ("trace", b"2"), ("none", None), ("größe", "ä".encode()), ("", b"")]
    with face.producer(bootstrap) as producer:
        producer.send(topic, b"pairs", headers=pairs).result()
        producer.send(topic, b"mapping", headers={"one": b"1"}).result()
        producer.send(topic, b"none", headers=[]).result()
    one, two, three = read_topic(face, bootstrap, topic, 3)
    assert list(one.headers) == pairs
    assert list(two.headers) == [("one", b"1")]
    assert list(three.headers) == []


def test_timestamps_of_the_producer(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"message.timestamp.type": "CreateTime"})
    moment = datetime(2024, 2, 29, 12, 0, 0, 123_000, UTC)
    with face.producer(bootstrap) as producer:
        given = producer.send(topic, b"number", timestamp=1_700_000_000_123).result()
        named = producer.send(topic, b"datetime", timestamp=moment).result()
    assert given.timestamp == 1_700_000_000_123
    assert named.timestamp == 1_709_208_000_123
    records = read_topic(face, bootstrap, topic, 2)
    assert [record.timestamp for record in records] == [1_700_000_000_123, 1_709_208_000_123]


def test_timestamps_of_the_broker(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, {"message.timestamp.type": "LogAppendTime"})
    before = now_ms()
    with face.producer(bootstrap) as producer:
        sent = producer.send(topic, b"value", timestamp=1_700_000_000_123).result()
    (record,) = read_topic(face, bootstrap, topic, 1)
    assert (record.timestamp, record.timestamp_type) == (sent.timestamp, LOG_APPEND_TIME)
    assert before <= sent.timestamp <= now_ms()


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(face: Face, bootstrap: str, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    sent = [b"%d " % number * 100 for number in range(300)]
    with face.producer(bootstrap, compression_type=codec, linger_ms=20, batch_size=10_000) as producer:
        deliveries = [producer.send(topic, value) for value in sent]
        offsets = [delivery.result().offset for delivery in deliveries]
    assert offsets == list(range(300))
    assert values(read_topic(face, bootstrap, topic, 300)) == sent


@pytest.mark.parametrize("acks", ["all", "1", 0, 1, -1])
def test_acknowledgements(face: Face, bootstrap: str, new_topic: NewTopic, acks: object) -> None:
    topic = new_topic()
    with face.producer(bootstrap, acks=acks) as producer:
        sent = [producer.send(topic, b"%d" % number).result() for number in range(3)]
    assert [one.offset for one in sent] == ([-1, -1, -1] if acks == 0 else [0, 1, 2])
    assert values(read_topic(face, bootstrap, topic, 3)) == [b"0", b"1", b"2"]


def test_flush_sends_what_lingers(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    with face.producer(bootstrap, linger_ms=60_000) as producer:
        deliveries = [producer.send(topic, b"value", partition=number % 3) for number in range(30)]
        assert not any(delivery.done() for delivery in deliveries)
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        # The next ones linger again.
        assert not producer.send(topic, b"late").done()


def test_close_sends_what_lingers(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = face.producer(bootstrap, linger_ms=60_000)
    delivery = producer.send(topic, b"value")
    producer.close()
    assert delivery.done() and delivery.result().offset == 0


def test_callbacks(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    told: list[object] = []
    with face.producer(bootstrap, linger_ms=50) as producer:
        for number in range(5):
            delivery = producer.send(topic, b"%d" % number)
            delivery.add_done_callback(lambda done: told.append(done.result(0).offset))
        producer.flush()
        wait_until(lambda: len(told) == 5, "the callbacks were called")
        assert told == [0, 1, 2, 3, 4]
        # Too late is not never.
        delivery.add_done_callback(lambda done: told.append("late"))
        wait_until(lambda: told[-1] == "late", "the late callback was called")


def test_a_callback_that_fails_hurts_nobody(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()

    def fail(delivery: object) -> None:
        raise RuntimeError("the user's mistake")

    with face.producer(bootstrap) as producer:
        for number in range(3):
            delivery = producer.send(topic, b"value")
            delivery.add_done_callback(fail)
            assert delivery.result().offset == number


def test_order_within_a_partition(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [b"%d" % number for number in range(2000)]
    with face.producer(bootstrap, batch_size=200) as producer:
        deliveries = face.send_all(producer, ({"topic": topic, "value": value} for value in sent))
        producer.flush()
        assert [delivery.result().offset for delivery in deliveries[::100]] == list(range(0, 2000, 100))
    assert values(read_topic(face, bootstrap, topic, 2000)) == sent


def test_many_topics_at_once(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topics = [new_topic(2) for _ in range(5)]
    with face.producer(bootstrap) as producer:
        deliveries = [
            (topic, index, producer.send(topic, b"%d" % index, partition=index))
            for topic in topics
            for index in range(2)
        ]
        for topic, index, delivery in deliveries:
            sent = delivery.result()
            assert (sent.topic, sent.partition, sent.offset) == (topic, index, 0)


def test_many_threads_share_a_producer(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """The plain face is thread-safe; with asyncio these are as many tasks."""
    topic = new_topic(3)
    failures: list[BaseException] = []

    with face.producer(bootstrap) as producer:

        def work(name: int) -> None:
            try:
                for number in range(100):
                    producer.send(topic, b"%d:%d" % (name, number), key=b"%d" % name).result()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    got = values(read_topic(face, bootstrap, topic, 400, partitions=3))
    for name in range(4):
        mine = [value for value in got if value is not None and value.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(100)]


def test_a_partition_of_ones_own(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    with face.producer(bootstrap) as producer:
        sent = [producer.send(topic, b"value", key=b"same", partition=index).result() for index in range(3)]
    assert [one.partition for one in sent] == [0, 1, 2]


def test_a_topic_that_the_broker_creates(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """auto.create.topics.enable is on: the first answers say that it has no leader yet."""
    topic = new_topic() + "-and-another"
    with face.producer(bootstrap) as producer:
        assert producer.send(topic, b"value").result().offset == 0
    assert values(read_topic(face, bootstrap, topic, 1)) == [b"value"]


def test_idempotent_unless_told_otherwise(face: Face, bootstrap: str, new_topic: NewTopic) -> None:
    """Seen in the log: the batches carry a producer id and ascending sequences."""
    from klamm.records.batch import parse_header
    from klamm.testing.wire import WireConnection
    from tests.abuse.calls import batches_of, fetch

    def headers_of(**options: object) -> list[tuple[bool, int]]:
        topic = new_topic()
        with face.producer(bootstrap, **options) as producer:
            for number in range(3):
                producer.send(topic, b"%d" % number).result()
        with WireConnection(bootstrap) as connection:
            data = fetch(connection, topic, 0)
        heads = [parse_header(batch) for batch in batches_of(data.records or b"")]
        return [(head.producer_id >= 0, head.base_sequence) for head in heads]

    assert headers_of() == [(True, 0), (True, 1), (True, 2)]
    assert headers_of(enable_idempotence=False) == [(False, -1)] * 3
    assert headers_of(acks=1) == [(False, -1)] * 3
