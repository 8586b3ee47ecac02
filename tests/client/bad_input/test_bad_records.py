"""Records, topics and partitions that cannot be: a typed error for them, and the producer goes on."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

import klamm
from klamm.model.errors import ErrorCode
from tests.client.bad_input.bounded import BOUND_S, CALL_MS, SHORT, SHORT_PRODUCER, failure_of
from tests.client.faces import Face
from tests.client.topics import make_topic, unique


@pytest.fixture
def topic(bootstrap: str) -> str:
    return make_topic(bootstrap, partitions=2)


def check_refused(
    face: Face,
    bootstrap: str,
    topic: str,
    kind: type[klamm.ClientError],
    record: dict[str, Any],
    **options: Any,
) -> klamm.ClientError:
    """`send` raises, or what it gives ends, in `kind`; the same producer serves the next record."""
    with face.producer(bootstrap, **{**SHORT_PRODUCER, **options}) as producer:
        failure = failure_of(lambda: producer.send(**{"topic": topic, "value": b"value", **record}).result())
        assert isinstance(failure, kind), repr(failure)
        assert producer.send(topic, b"good", partition=0).result().partition == 0
    assert not failure.retriable or isinstance(failure, klamm.UnknownTopic | klamm.TimedOut)
    return failure


@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize("thing", ["text", 7, 1.5, {"a": 1}, [b"x"], ..., True], ids=repr)
def test_what_is_not_bytes(face: Face, bootstrap: str, topic: str, part: str, thing: object) -> None:
    failure = check_refused(face, bootstrap, topic, klamm.NotSerializable, {part: thing})
    assert isinstance(failure, TypeError)
    assert part in str(failure)
    if isinstance(thing, str):
        assert "encode" in str(failure)


@pytest.mark.parametrize(
    "headers",
    [
        [("name", "text")],
        [(b"name", b"value")],
        [("name",)],
        ["name"],
        {"name": 7},
        7,
        [(None, b"value")],
        [("name", b"value", b"more")],
    ],
    ids=repr,
)
def test_headers_that_are_none(face: Face, bootstrap: str, topic: str, headers: object) -> None:
    check_refused(face, bootstrap, topic, klamm.NotSerializable, {"headers": headers})


@pytest.mark.parametrize(
    "timestamp",
    ["now", 1.5, -5, 2**63, datetime(2024, 1, 1)],
    ids=repr,
)
def test_timestamps_that_are_none(face: Face, bootstrap: str, topic: str, timestamp: object) -> None:
    check_refused(face, bootstrap, topic, klamm.ClientError, {"timestamp": timestamp})


@pytest.mark.parametrize("partition", [-1, 2, 1000, 2**31, 2**63])
def test_partitions_out_of_range(face: Face, bootstrap: str, topic: str, partition: int) -> None:
    failure = check_refused(face, bootstrap, topic, klamm.ClientError, {"partition": partition})
    assert topic in str(failure) or str(partition) in str(failure)


@pytest.mark.parametrize("partition", ["0", 1.5, b"0"])
def test_partitions_that_are_no_numbers(face: Face, bootstrap: str, topic: str, partition: object) -> None:
    check_refused(face, bootstrap, topic, klamm.ClientError, {"partition": partition})


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "größe", "a/b", "x" * 250, "a\0b"], ids=ascii)
def test_names_that_are_none(face: Face, bootstrap: str, topic: str, name: str) -> None:
    failure = check_refused(face, bootstrap, topic, klamm.ClientError, {"topic": name})
    assert failure.code in (None, ErrorCode.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize("name", [None, 7, b"topic"], ids=repr)
def test_names_that_are_no_text(face: Face, bootstrap: str, topic: str, name: object) -> None:
    check_refused(face, bootstrap, topic, klamm.ClientError, {"topic": name})


def test_larger_than_the_client_allows(face: Face, bootstrap: str, topic: str) -> None:
    failure = check_refused(
        face, bootstrap, topic, klamm.RecordTooLarge, {"value": bytes(10_001)}, max_request_size=10_000
    )
    assert "max_request_size" in str(failure)


def test_larger_than_the_buffer(face: Face, bootstrap: str, topic: str) -> None:
    """It would wait for room for ever."""
    check_refused(face, bootstrap, topic, klamm.ClientError, {"value": bytes(60_000)}, buffer_memory=50_000)


def test_larger_than_the_topic_allows(face: Face, bootstrap: str) -> None:
    topic = make_topic(bootstrap, configs={"max.message.bytes": 20_000})
    failure = check_refused(face, bootstrap, topic, klamm.RecordTooLarge, {"value": bytes(30_000)})
    assert failure.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in failure.advice


def test_a_batch_larger_than_the_topic_allows_is_sent_in_parts(face: Face, bootstrap: str) -> None:
    """Each of the records is small enough; only together they are not."""
    topic = make_topic(bootstrap, configs={"max.message.bytes": 20_000})
    with face.producer(bootstrap, linger_ms=50, batch_size=65_536) as producer:
        deliveries = [producer.send(topic, bytes([number]) * 5000) for number in range(10)]
        assert [delivery.result().offset for delivery in deliveries] == list(range(10))


def test_a_compacted_topic_wants_keys(face: Face, bootstrap: str) -> None:
    topic = make_topic(bootstrap, configs={"cleanup.policy": "compact"})
    with face.producer(bootstrap, **SHORT_PRODUCER) as producer:
        failure = failure_of(lambda: producer.send(topic, b"value").result())
        assert isinstance(failure, klamm.RecordRefused) and "key" in failure.advice
        assert producer.send(topic, b"value", key=b"key").result().offset == 0


def test_bad_neighbours_in_a_batch(face: Face, bootstrap: str, topic: str) -> None:
    """What is refused before it is sent does no harm to those that were sent with it."""
    with face.producer(bootstrap, linger_ms=50) as producer:
        good = []
        for number in range(10):
            good.append(producer.send(topic, b"%d" % number, partition=0))
            assert failure_of(lambda: producer.send(topic, "text", partition=0).result()) is not None
        assert [delivery.result().offset for delivery in good] == list(range(10))


def test_a_topic_that_is_not_there(face: Face, bootstrap: str) -> None:
    name = unique("nowhere")
    with face.producer(bootstrap, **SHORT_PRODUCER) as producer:
        started = time.monotonic()
        failure = failure_of(lambda: producer.send(name, b"value").result())
        assert time.monotonic() - started > CALL_MS / 1000 * 0.5, "it might have been created meanwhile"
        assert failure is not None and failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert name in str(failure)
    with face.admin(bootstrap, **SHORT) as admin:
        assert isinstance(failure_of(lambda: admin.describe_topic(name)), klamm.UnknownTopic)
        assert isinstance(failure_of(lambda: admin.delete_topic(name)), klamm.UnknownTopic)
    with face.consumer(bootstrap, group=name, topics=[name], **SHORT) as consumer:
        # A subscription may be early; it finds nothing and says so only in the log.
        assert failure_of(lambda: consumer.poll(timeout=0.5)) is None
        for call in (
            lambda: consumer.end_offsets([(name, 0)]),
            lambda: consumer.partitions_for(name),
        ):
            failure = failure_of(call)
            assert failure is not None and name in str(failure)
    with face.consumer(bootstrap, start="earliest", **SHORT) as consumer:
        consumer.assign([(name, 0)])
        failure = failure_of(lambda: consumer.position((name, 0)))
        assert failure is not None and name in str(failure)


def test_an_internal_topic(face: Face, bootstrap: str) -> None:
    with face.consumer(bootstrap, group=unique("group"), **SHORT) as consumer:
        consumer.committed([("any", 0)])  # makes the topic of committed offsets
    with face.producer(bootstrap, **SHORT_PRODUCER) as producer:
        failure = failure_of(lambda: producer.send("__consumer_offsets", b"value", partition=0).result())
    assert (
        isinstance(failure, klamm.InvalidTopic) and "only brokers write to internal topics" in failure.advice
    )


def test_a_topic_that_comes_in_time(face: Face, bootstrap: str) -> None:
    name = unique("late")
    with face.producer(bootstrap) as producer:
        delivery = producer.send(name, b"value")
        make_topic(bootstrap, name)
        assert delivery.result().offset == 0


def test_partitions_of_a_consumer_out_of_range(face: Face, bootstrap: str, topic: str) -> None:
    for index in (7, -1):
        with face.consumer(bootstrap, start="earliest", **SHORT) as consumer:
            assert failure_of(lambda index=index: consumer.end_offsets([(topic, index)])) is not None
            failure = failure_of(
                lambda index=index, consumer=consumer: (
                    consumer.assign([(topic, index)]),
                    consumer.position((topic, index)),
                )
            )
            assert failure is not None, f"partition {index} of two was taken"


@pytest.mark.parametrize("group", ["", "x" * 40_000, 7])
def test_groups_that_are_none(face: Face, bootstrap: str, topic: str, group: object) -> None:
    def join() -> None:
        with face.consumer(bootstrap, group=group, topics=[topic], **SHORT) as consumer:
            consumer.poll(timeout=CALL_MS / 1000)

    try:
        failure_of(join, BOUND_S + 2)
    except klamm.ConfigError as refused:
        assert "group" in str(refused)
