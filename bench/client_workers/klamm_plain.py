"""klamm: the plain client. A chunk's deliveries are checked after the next chunk is sent, as for all
clients."""

from __future__ import annotations

import time
from typing import Any, Literal

import klamm
from bench.client_workers import driving


class KlammPlain:
    batch_bytes: int | None = driving.BATCH_BYTES
    acks: Literal["1", "all"] = "1"

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self._bootstrap, self._topic, self._partition_count = bootstrap, topic, partition_count
        self._producer: klamm.Producer | None = None
        self._sent: list[Any] = []

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        self._value = value
        self._producer = klamm.Producer(
            self._bootstrap,
            acks=self.acks,
            linger_ms=linger_ms,
            batch_size=self.batch_bytes,
            buffer_memory=buffer_bytes,
        )

    def send_many(self, count: int) -> None:
        assert self._producer is not None
        send, topic, value = self._producer.send, self._topic, self._value
        before, self._sent = self._sent, [send(topic, value) for _ in range(count)]
        for delivery in before:
            delivery.result(driving.QUIET_SECONDS)

    def finish_sending(self) -> None:
        assert self._producer is not None
        self._producer.flush(driving.QUIET_SECONDS)
        for delivery in self._sent:
            delivery.result(driving.QUIET_SECONDS)
        self._sent = []

    def feed_many(self, count: int) -> None:
        assert self._producer is not None
        send, topic, size = self._producer.send, self._topic, len(self._value)
        for _ in range(count):
            send(topic, bytes(size))

    def counted_bytes(self) -> float:
        assert self._producer is not None
        return self._producer.counters()["buffer_bytes"]

    def check_fed(self) -> None:
        assert self._producer is not None
        if failed := self._producer.counters()["send_errors"]:
            raise SystemExit(f"{failed:.0f} records failed")

    def open_consumer(self) -> None:
        self._consumer = klamm.Consumer(self._bootstrap, start="earliest")
        self._consumer.assign([(self._topic, partition) for partition in range(self._partition_count)])

    def read_some(self, most: int) -> int:
        records = self._consumer.poll(driving.QUIET_SECONDS, most)
        for record in records:
            if not record.value:
                raise SystemExit(f"a record without its value: {record}")
        return len(records)

    def close_consumer(self) -> None:
        self._consumer.close()

    def time_acknowledgements(self, count: int) -> list[int]:
        assert self._producer is not None
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            producer.send(topic, value).result(driving.QUIET_SECONDS)
            times.append(clock() - started)
        return times

    def time_arrivals(self, count: int) -> list[int]:
        assert self._producer is not None
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            delivery = producer.send(topic, value)
            if not self._consumer.poll(driving.QUIET_SECONDS):
                raise SystemExit("no record came")
            times.append(clock() - started)
            delivery.result(driving.QUIET_SECONDS)
        return times

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


if __name__ == "__main__":
    driving.main(KlammPlain)
