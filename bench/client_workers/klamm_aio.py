"""klamm.aio on uvloop: `send` gives something to await, `drain` waits for room."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvloop

from bench.client_workers import driving
from klamm import aio
from klamm.client.errors import BufferFull


class KlammAio:
    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self._bootstrap, self._topic, self._partition_count = bootstrap, topic, partition_count
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._producer: aio.Producer | None = None
        self._sent: list[Any] = []

    def open_producer(self, value: bytes, linger_ms: float, buffer_bytes: int) -> None:
        self._value = value
        self._runner.run(self._open_producer(linger_ms, buffer_bytes))

    async def _open_producer(self, linger_ms: float, buffer_bytes: int) -> None:
        self._producer = aio.Producer(
            self._bootstrap,
            acks="1",
            linger_ms=linger_ms,
            batch_size=driving.BATCH_BYTES,
            buffer_memory=buffer_bytes,
        )
        await self._producer.start()

    def send_many(self, count: int) -> None:
        self._runner.run(self._send_many(count))

    async def _send_many(self, count: int) -> None:
        assert self._producer is not None
        send, topic, value = self._producer.send, self._topic, self._value
        before, self._sent = self._sent, []
        hand_over = self._sent.append
        for _ in range(count):
            try:
                hand_over(send(topic, value))
            except BufferFull:
                await self._producer.drain()
                hand_over(send(topic, value))
        for delivery in before:
            await delivery

    def finish_sending(self) -> None:
        self._runner.run(self._finish_sending())

    async def _finish_sending(self) -> None:
        assert self._producer is not None
        await self._producer.flush()
        for delivery in self._sent:
            await delivery
        self._sent = []

    def feed_many(self, count: int) -> None:
        self._runner.run(self._feed_many(count))

    async def _feed_many(self, count: int) -> None:
        assert self._producer is not None
        send, topic, size = self._producer.send, self._topic, len(self._value)
        for _ in range(count):
            try:
                send(topic, bytes(size))
            except BufferFull:
                await self._producer.drain()
                send(topic, bytes(size))

    def counted_bytes(self) -> float:
        assert self._producer is not None
        return self._producer.counters()["buffer_bytes"]

    def check_fed(self) -> None:
        assert self._producer is not None
        if failed := self._producer.counters()["send_errors"]:
            raise SystemExit(f"{failed:.0f} records failed")

    def open_consumer(self) -> None:
        self._runner.run(self._open_consumer())

    async def _open_consumer(self) -> None:
        self._consumer = aio.Consumer(self._bootstrap, start="earliest")
        await self._consumer.start()
        self._consumer.assign([(self._topic, partition) for partition in range(self._partition_count)])

    def read_some(self, most: int) -> int:
        return self._runner.run(self._read_some(most))

    async def _read_some(self, most: int) -> int:
        records = await self._consumer.poll(driving.QUIET_SECONDS, most)
        for record in records:
            if not record.value:
                raise SystemExit(f"a record without its value: {record}")
        return len(records)

    def close_consumer(self) -> None:
        self._runner.run(self._consumer.close())

    def time_acknowledgements(self, count: int) -> list[int]:
        return self._runner.run(self._time_acknowledgements(count))

    async def _time_acknowledgements(self, count: int) -> list[int]:
        assert self._producer is not None
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            await producer.send(topic, value)
            times.append(clock() - started)
        return times

    def time_arrivals(self, count: int) -> list[int]:
        return self._runner.run(self._time_arrivals(count))

    async def _time_arrivals(self, count: int) -> list[int]:
        assert self._producer is not None
        times: list[int] = []
        clock, producer, topic, value = time.perf_counter_ns, self._producer, self._topic, self._value
        for _ in range(count):
            started = clock()
            delivery = producer.send(topic, value)
            if not await self._consumer.poll(driving.QUIET_SECONDS):
                raise SystemExit("no record came")
            times.append(clock() - started)
            await delivery
        return times

    def close(self) -> None:
        if self._producer is not None:
            self._runner.run(self._producer.close())
        self._runner.close()


if __name__ == "__main__":
    driving.main(KlammAio)
