"""Reads with confluent-kafka into Arrow, and writes, without Spark: `python -m bench.spark.confluent_arrow
TASK JSON`.

This is what a Python user writes today: it consumes ten thousand messages at a time and turns them into
columns, pyarrow writes the table, and columns are sent message by message. It is one process, with
librdkafka's threads. The time starts with the first call that sends a request to the broker; imports are not
counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

READ_AT_ONCE = 10_000
QUIET_SECONDS = 30.0
QUEUE_MESSAGES = 1_000_000
QUEUE_KB = 256 * 1024
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("ms", tz="UTC")),
        ("timestampType", pyarrow.int32()),
    ]
)


def read(
    bootstrap: str, topic: str, partition_count: int, sink: str, path: str, rows: int
) -> dict[str, float]:
    """Read the whole topic, and drop the records or write them into one Parquet file."""
    started = time.perf_counter()
    writer = pyarrow.parquet.ParquetWriter(path, SCHEMA) if sink == "parquet" else None
    found = 0
    for batch in batches(bootstrap, topic, partition_count, rows):
        found += batch.num_rows
        if writer is not None:
            writer.write_batch(batch, row_group_size=1_000_000)
    if writer is not None:
        writer.close()
    elapsed = time.perf_counter() - started
    Path(path).unlink(missing_ok=True)
    return {"rows": found, "seconds": elapsed, "cpu_seconds": time.process_time()}


def batches(bootstrap: str, topic: str, partition_count: int, rows: int) -> Iterator[pyarrow.RecordBatch]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,  # a full queue would be looked at again only after a second
            "queued.max.messages.kbytes": QUEUE_KB,
        }
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partition_count)])
    left = rows
    while left:
        messages = consumer.consume(min(READ_AT_ONCE, left), QUIET_SECONDS)
        if not messages:
            raise SystemExit(f"{left} of {rows} records did not come within {QUIET_SECONDS} s")
        left -= len(messages)
        yield columns(messages)
    consumer.close()


def columns(messages: list[Message]) -> pyarrow.RecordBatch:
    times = [message.timestamp() for message in messages]
    arrays = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [time_ms for _, time_ms in times],
        [kind - 1 for kind, _ in times],
    ]
    return pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(array, field.type) for array, field in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA
    )


def write(bootstrap: str, topic: str, rows: int, size: int) -> dict[str, float]:
    """Send columns of one value to a topic; all replicas acknowledge each record."""
    batch = pyarrow.array([bytes(size)] * READ_AT_ONCE, pyarrow.binary())
    failed: list[KafkaError] = []
    started = time.perf_counter()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": QUEUE_KB,
            "delivery.report.only.error": True,
        }
    )

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    produce = producer.produce
    for first in range(0, rows, READ_AT_ONCE):
        for value in batch.slice(0, rows - first).to_pylist():
            while True:
                try:
                    produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.001)
        producer.poll(0)
    if producer.flush(QUIET_SECONDS) or failed:
        raise SystemExit(f"records were not sent: {failed[:1]}")
    return {"rows": rows, "seconds": time.perf_counter() - started, "cpu_seconds": time.process_time()}


TASKS = {"read": read, "write": write}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
