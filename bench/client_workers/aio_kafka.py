"""aiokafka on uvloop: `send` gives a future, awaited by chunks; `getmany` gives lists."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.client_workers import driving


class AioKafka:
    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self._bootstrap, self._topic, self._partition_count = bootstrap, topic, partition_count
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._producer: Any = None
        self._sent: list[Any] = []

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        self._value = value
        self._runner.run(self._open_producer(linger_ms))

    async def _open_producer(self, linger_ms: float) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks=1,
            linger_ms=int(linger_ms),
            max_batch_size=driving.BATCH_BYTES,
        )
        await self._producer.start()
        await self._producer.partitions_for(self._topic)

    def send_many(self, count: int) -> None:
        self._runner.run(self._send_many(count))

    async def _send_many(self, count: int) -> None:
        send, topic, value = self._producer.send, self._topic, self._value
        before, self._sent = self._sent, [await send(topic, value) for _ in range(count)]
        for future in before:
            await future

    def finish_sending(self) -> None:
        self._runner.run(self._finish_sending())

    async def _finish_sending(self) -> None:
        await self._producer.flush()
        for future in self._sent:
            await future
        self._sent = []

    def open_consumer(self) -> None:
        self._runner.run(self._open_consumer())

    async def _open_consumer(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await self._consumer.start()
        self._consumer.assign(
            [TopicPartition(self._topic, partition) for partition in range(self._partition_count)]
        )

    def read_some(self, most: int) -> int:
        return self._runner.run(self._read_some(most))

    async def _read_some(self, most: int) -> int:
        count = 0
        found = await self._consumer.getmany(timeout_ms=int(driving.QUIET_SECONDS * 1000), max_records=most)
        for records in found.values():
            for record in records:
                if not record.value:
                    raise SystemExit(f"a record without its value: {record}")
            count += len(records)
        return count

    def close_consumer(self) -> None:
        self._runner.run(self._consumer.stop())

    def time_acknowledgements(self, count: int) -> list[int]:
        return self._runner.run(self._time_acknowledgements(count))

    async def _time_acknowledgements(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            await producer.send_and_wait(topic, value)
            times.append(clock() - started)
        return times

    def time_arrivals(self, count: int) -> list[int]:
        return self._runner.run(self._time_arrivals(count))

    async def _time_arrivals(self, count: int) -> list[int]:
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            future = await producer.send(topic, value)
            await self._consumer.getone()
            times.append(clock() - started)
            await future
        return times

    def close(self) -> None:
        if self._producer is not None:
            self._runner.run(self._producer.stop())
        self._runner.close()


if __name__ == "__main__":
    driving.main(AioKafka)
