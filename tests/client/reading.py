"""Short ways to consume what a test has produced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from klamm.client.results import Record, TopicPartition
from tests.client.faces import Face

PATIENCE_S = 20.0
QUIET_S = 0.2
"""What has not come within so long, when all that was expected is there, does not come."""


def collect(consumer: Any, count: int, timeout_s: float = PATIENCE_S) -> list[Record]:
    """Poll until there are `count` records; more than that are an error."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"only {len(records)} of {count} records came within {timeout_s:.0f} s"
        records += consumer.poll(timeout=min(left, 1.0))
    assert len(records) == count, f"{len(records)} records came instead of {count}"
    return records


def poll_until(
    consumer: Any, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S
) -> list[Record]:
    """Poll, because a group goes on only while its members do, until a condition holds."""
    records: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        records += consumer.poll(timeout=0.05)
    return records


def read_topic(face: Face, bootstrap: str, topic: str, count: int, partitions: int = 1) -> list[Record]:
    """The first `count` records of a topic, without a group."""
    with face.consumer(bootstrap, start="earliest") as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
        return collect(consumer, count)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def fill(face: Face, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[bytes]:
    """Send numbered records to one partition and wait until they are there."""
    sent = [b"%d" % number for number in range(count)]
    with face.producer(bootstrap, linger_ms=5) as producer:
        records = [{"topic": topic, "value": value, "partition": partition} for value in sent]
        deliveries = face.send_all(producer, records)
        producer.flush()
        assert [delivery.exception() for delivery in deliveries[-1:]] == [None]
    return sent
