"""confluent-kafka: librdkafka's own threads, polled now and then for what failed."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.client_workers import driving


class Confluent:
    acks = "1"

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self._bootstrap, self._topic, self._partition_count = bootstrap, topic, partition_count
        self._failed: list[KafkaError] = []

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        self._value = value
        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": self.acks,
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": buffer_bytes // 1024,
                "delivery.report.only.error": linger_ms > 0,  # the round trip waits for every report
                "socket.nagle.disable": True,
            }
        )
        self._producer.list_topics(self._topic, timeout=driving.QUIET_SECONDS)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def send_many(self, count: int) -> None:
        produce, poll, topic, value = self._producer.produce, self._producer.poll, self._topic, self._value
        delivered = self._delivered
        for _ in range(count):
            while True:
                try:
                    produce(topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    poll(0.001)
        poll(0)
        self._check()

    def finish_sending(self) -> None:
        left = self._producer.flush(driving.QUIET_SECONDS)
        if left:
            raise SystemExit(f"{left} records were not sent")
        self._check()

    def _check(self) -> None:
        if self._failed:
            raise SystemExit(f"{len(self._failed)} records failed: {self._failed[0]}")

    def feed_many(self, count: int) -> None:
        self.send_many(count)  # the library makes copies of its own

    def counted_bytes(self) -> float:
        return 0.0

    def check_fed(self) -> None:
        self._check()

    def open_consumer(self) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self._topic}-confluent",
                "enable.auto.commit": False,
                "socket.nagle.disable": True,
                "fetch.queue.backoff.ms": 5,  # by default a full queue pauses fetching for a second
            }
        )
        self._consumer.assign(
            [
                TopicPartition(self._topic, partition, OFFSET_BEGINNING)
                for partition in range(self._partition_count)
            ]
        )

    def read_some(self, most: int) -> int:
        messages = self._consumer.consume(most, timeout=driving.QUIET_SECONDS)
        for message in messages:
            if message.error() is not None or not message.value():
                raise SystemExit(str(message.error()))
        return len(messages)

    def close_consumer(self) -> None:
        self._consumer.close()

    def time_acknowledgements(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            producer.produce(topic, value, on_delivery=self._delivered)
            while not producer.poll(driving.QUIET_SECONDS):
                pass  # something else than a report woke it
            times.append(clock() - started)
        self._check()
        return times

    def time_arrivals(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            producer.produce(topic, value, on_delivery=self._delivered)
            message = self._consumer.poll(driving.QUIET_SECONDS)
            times.append(clock() - started)
            if message is None or message.error() is not None:
                raise SystemExit(f"no record came: {message and message.error()}")
            producer.flush(driving.QUIET_SECONDS)
        self._check()
        return times

    def close(self) -> None:
        pass  # a flushed producer needs no closing


if __name__ == "__main__":
    driving.main(Confluent)
