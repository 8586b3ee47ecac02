"""One librdkafka client in a process of its own: `python -m bench.librdkafka_worker TASK JSON`.

Prints its figures as one line of JSON. Send times travel in the records as CLOCK_MONOTONIC nanoseconds, which
all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import sys
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

CONSUME_AT_ONCE = 10_000
IDLE_SECONDS = 30.0
_STAMP = struct.Struct(">qq")  # number of the record, send time in ns


def produce(bootstrap: str, topic: str, record_count: int, record_size: int) -> dict[str, float]:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
    )
    value = os.urandom(record_size)
    producer.list_topics(topic, timeout=30)
    started = time.perf_counter()
    for _ in range(record_count):
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    seconds = time.perf_counter() - started
    if failed or left:
        raise SystemExit(f"{len(failed)} records failed, {left} were not sent: {failed[:1]}")
    return {"seconds": seconds}


def open_consumer(bootstrap: str, topic: str, partition_count: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-librdkafka",
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )
    consumer.assign(
        [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partition_count)]
    )
    return consumer


def consume(bootstrap: str, topic: str, record_count: int, partition_count: int) -> dict[str, float]:
    """Timed from the assignment; the clock stops with the last record."""
    started = time.perf_counter()
    consumer = open_consumer(bootstrap, topic, partition_count)
    count = 0
    while count < record_count:
        messages = consumer.consume(CONSUME_AT_ONCE, timeout=IDLE_SECONDS)
        if not messages:
            raise SystemExit(f"only {count} of {record_count} records within {IDLE_SECONDS} s")
        for message in messages:
            if message.error() is not None:
                raise SystemExit(str(message.error()))
        count += len(messages)
    seconds = time.perf_counter() - started
    consumer.close()
    return {"seconds": seconds}


def send_at_rate(
    bootstrap: str, topic: str, rate: int, seconds: float, record_size: int, linger_ms: float
) -> dict[str, float]:
    """Sends record after record at an even rate; each carries the moment it was given to the library."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 1_000_000,
            "socket.nagle.disable": True,
            "delivery.report.only.error": True,
        }
    )
    producer.list_topics(topic, timeout=30)
    padding = os.urandom(record_size - _STAMP.size)
    record_count = int(rate * seconds)
    clock = time.monotonic_ns
    started = clock()
    for number in range(record_count):
        due = started + number * 1_000_000_000 // rate
        while (wait_ns := due - clock()) > 0:
            time.sleep(wait_ns / 1e9)
        producer.produce(topic, _STAMP.pack(number, clock()) + padding)
    sent_seconds = (clock() - started) / 1e9
    left = producer.flush(20)
    return {"sent_per_second": record_count / sent_seconds, "unsent": float(left)}


def receive_and_time(
    bootstrap: str, topic: str, record_count: int, skip_count: int, patience_seconds: float
) -> dict[str, float]:
    """Percentiles from send to receive, without the first records; prints `ready` once it waits for
    records."""
    consumer = open_consumer(bootstrap, topic, partition_count=1)
    consumer.poll(0.5)  # the topic is empty: the assignment is active and the first fetch is waiting
    print("ready", flush=True)
    latencies_ms: list[float] = []
    first_ns = last_ns = time.monotonic_ns()
    deadline = last_ns + int(patience_seconds * 1e9)
    count = 0
    while count < record_count and time.monotonic_ns() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            raise SystemExit(str(message.error()))
        last_ns = time.monotonic_ns()
        number, sent_ns = _STAMP.unpack_from(message.value() or b"")
        count += 1
        if number >= skip_count:
            latencies_ms.append((last_ns - sent_ns) / 1e6)
        else:
            first_ns = last_ns
    consumer.close()
    if len(latencies_ms) < 1000:
        raise SystemExit(f"only {count} of {record_count} records arrived within {patience_seconds} s")
    cuts = statistics.quantiles(latencies_ms, n=1000, method="inclusive")
    return {
        "p50_ms": cuts[499],
        "p99_ms": cuts[989],
        "p99.9_ms": cuts[998],
        "missing": float(record_count - count),
        "received_per_second": len(latencies_ms) / ((last_ns - first_ns) / 1e9),
    }


TASKS: dict[str, Any] = {
    "produce": produce,
    "consume": consume,
    "send": send_at_rate,
    "receive": receive_and_time,
}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
