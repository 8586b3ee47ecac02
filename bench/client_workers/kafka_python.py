"""kafka-python: a thread of its own sends, the caller's thread fetches."""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.client_workers import driving


class KafkaPython:
    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self._bootstrap, self._topic, self._partition_count = bootstrap, topic, partition_count
        self._producer: Any = None
        self._sent: list[Any] = []

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        self._value = value
        self._producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks=1,
            enable_idempotence=False,
            linger_ms=linger_ms,
            batch_size=driving.BATCH_BYTES,
        )
        self._producer.partitions_for(self._topic)

    def send_many(self, count: int) -> None:
        send, topic, value = self._producer.send, self._topic, self._value
        before, self._sent = self._sent, [send(topic, value) for _ in range(count)]
        for future in before:
            future.get(driving.QUIET_SECONDS)

    def finish_sending(self) -> None:
        self._producer.flush(driving.QUIET_SECONDS)
        for future in self._sent:
            future.get(driving.QUIET_SECONDS)
        self._sent = []

    def open_consumer(self) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        self._consumer.assign(
            [TopicPartition(self._topic, partition) for partition in range(self._partition_count)]
        )

    def read_some(self, most: int) -> int:
        count = 0
        found = self._consumer.poll(timeout_ms=int(driving.QUIET_SECONDS * 1000), max_records=most)
        for records in found.values():
            for record in records:
                if not record.value:
                    raise SystemExit(f"a record without its value: {record}")
            count += len(records)
        return count

    def close_consumer(self) -> None:
        self._consumer.close()

    def time_acknowledgements(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            producer.send(topic, value).get(driving.QUIET_SECONDS)
            times.append(clock() - started)
        return times

    def time_arrivals(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            future = producer.send(topic, value)
            if not self.read_some(1):
                raise SystemExit("no record came")
            times.append(clock() - started)
            future.get(driving.QUIET_SECONDS)
        return times

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


if __name__ == "__main__":
    driving.main(KafkaPython)
